"""Several runs of one script, each under its own strategy, on the same axes: who got there first. Pure.

A run's curve is the mean of its workers' reports over what it had seen by then. The goal is a value that every run
reached, so that "first" means something for all of them; whoever diverged reached nothing and cannot win.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

RISING = ("accuracy", "acc", "auc", "f1", "precision", "recall", "score", "r2")
SMOOTH = 5  # reports that are averaged before a goal counts as reached


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a run stood at one of its reports."""

    seconds: float
    steps: int
    samples: int
    sent: int  # bytes, by all workers together
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Course:
    """One strategy's run."""

    strategy: str
    marks: tuple[Mark, ...]
    state: str = "succeeded"
    waited: float = 0.0  # the part of all worker time that was spent waiting
    staleness: float = 0.0  # mean
    job: str = ""

    def line(self, metric: str) -> list[tuple[Mark, float]]:
        """The metric, smoothed, at each mark that has it."""
        seen = [(mark, mark.values[metric]) for mark in self.marks if metric in mark.values]
        return [
            (mark, fmean(value for _, value in seen[max(0, at + 1 - SMOOTH) : at + 1]))
            for at, (mark, _) in enumerate(seen)
        ]

    def best(self, metric: str, rising: bool) -> float | None:
        values = [value for _, value in self.line(metric) if math.isfinite(value)]
        return None if not values else max(values) if rising else min(values)

    def reached(self, metric: str, goal: float, rising: bool) -> Mark | None:
        """The first mark at which the goal was met."""
        for mark, value in self.line(metric):
            if (value >= goal) if rising else (value <= goal):
                return mark
        return None

    @property
    def pace(self) -> float:
        """Samples a second, or steps where samples were not counted."""
        last = self.marks[-1] if self.marks else None
        if last is None or last.seconds <= 0:
            return 0.0
        return (last.samples or last.steps) / last.seconds


@dataclass(frozen=True, slots=True)
class Comparison:
    """All courses, the metric they are judged by, the goal, and the winner (None when nobody reported it)."""

    courses: tuple[Course, ...]
    metric: str
    goal: float
    winner: str | None
    suggested: str | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def rising(self) -> bool:
        return is_rising(self.metric)

    def to_dict(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "goal": self.goal,
            "winner": self.winner,
            "suggested": self.suggested,
            "notes": list(self.notes),
            "courses": [self._course(course) for course in self.courses],
        }

    def _course(self, course: Course) -> dict[str, Any]:
        there = course.reached(self.metric, self.goal, self.rising) if self.winner else None
        last = course.marks[-1] if course.marks else None
        return {
            "strategy": course.strategy,
            "job": course.job,
            "state": course.state,
            "best": course.best(self.metric, self.rising),
            "seconds_to_goal": there.seconds if there else None,
            "steps_to_goal": there.steps if there else None,
            "bytes_to_goal": there.sent if there else None,
            "seconds": last.seconds if last else None,
            "steps": last.steps if last else None,
            "sent": last.sent if last else None,
            "per_second": course.pace,
            "waited": course.waited,
            "staleness": course.staleness,
        }


def is_rising(metric: str) -> bool:
    return any(word in metric.lower() for word in RISING)


def compare(courses: Sequence[Course], metric: str | None = None, goal: float | None = None) -> Comparison:
    """Judges by the named metric, else `loss`, else the first one everybody reported."""
    chosen = metric or _common_metric(courses)
    rising = is_rising(chosen)
    bests = {course.strategy: course.best(chosen, rising) for course in courses}
    known = [best for best in bests.values() if best is not None]
    if not known:
        return Comparison(tuple(courses), chosen, math.nan, None)
    if goal is None:
        goal = min(known) if rising else max(known)
    arrived = [
        (there.seconds, course.strategy)
        for course in courses
        if (there := course.reached(chosen, goal, rising)) is not None
    ]
    winner = min(arrived)[1] if arrived else None
    return Comparison(tuple(courses), chosen, goal, winner)


def _common_metric(courses: Iterable[Course]) -> str:
    names = [list(dict.fromkeys(name for mark in course.marks for name in mark.values)) for course in courses]
    shared = [name for name in (names[0] if names else []) if all(name in other for other in names)]
    return "loss" if "loss" in shared or not shared else shared[0]


def course_of(
    strategy: str, reports: Mapping[str, Sequence[Mapping[str, Any]]], state: str = "succeeded", job: str = ""
) -> Course:
    """A course from the workers' report lines (what the training library writes, see docs/training.md)."""
    begin = min((float(lines[0]["began"]) for lines in reports.values() if lines), default=0.0)
    merged = sorted(
        ((float(line["at"]) - begin, worker, line) for worker, lines in reports.items() for line in lines),
        key=lambda one: one[0],
    )
    latest: dict[str, Mapping[str, Any]] = {}
    marks = []
    for seconds, worker, line in merged:
        latest[worker] = line
        marks.append(
            Mark(
                seconds=seconds,
                steps=max(int(one["step"]) for one in latest.values()),
                samples=sum(int(one.get("samples") or 0) for one in latest.values()),
                sent=sum(int(one.get("sent") or 0) for one in latest.values()),
                values={name: float(value) for name, value in line["values"].items()},
            )
        )
    spent = [sum(float(one.get(part) or 0) for part in ("compute", "wait", "exchange")) for one in latest.values()]
    waited = sum(float(one.get("wait") or 0) for one in latest.values())
    return Course(
        strategy,
        tuple(marks),
        state,
        waited=waited / sum(spent) if sum(spent) else 0.0,
        staleness=_mean_staleness(latest.values()),
        job=job,
    )


def _mean_staleness(lines: Iterable[Mapping[str, Any]]) -> float:
    counts: dict[int, int] = {}
    for line in lines:
        for by, count in (line.get("staleness") or {}).items():
            counts[int(by)] = counts.get(int(by), 0) + int(count)
    total = sum(counts.values())
    return sum(by * count for by, count in counts.items()) / total if total else 0.0
