"""Several runs of one script, each under its own strategy, on the same axes: who got there first. Pure.

A run's curve is what its workers reported, smoothed. The goal is near the best that any run reached: whoever comes
there first wins, so neither speed without learning nor a hair's breadth at twice the time does.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

RISING = ("accuracy", "acc", "auc", "f1", "precision", "recall", "score", "r2")
SMOOTH = 5  # reports that are averaged before a goal counts as reached
NEAR = 0.05  # of the way from the start to the best: what lies between the goal and the best


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
        best = max(known) if rising else min(known)
        goal = best + NEAR * (_start(courses, chosen) - best)
    arrived = [
        (there.seconds, course.strategy)
        for course in courses
        if (there := course.reached(chosen, goal, rising)) is not None
    ]
    winner = min(arrived)[1] if arrived else None
    return Comparison(tuple(courses), chosen, goal, winner)


def _start(courses: Iterable[Course], metric: str) -> float:
    """Where the runs began, in the mean."""
    first = [line[0][1] for course in courses if (line := course.line(metric)) and math.isfinite(line[0][1])]
    return fmean(first)


def _common_metric(courses: Iterable[Course]) -> str:
    names = [list(dict.fromkeys(name for mark in course.marks for name in mark.values)) for course in courses]
    shared = [name for name in (names[0] if names else []) if all(name in other for other in names)]
    return "loss" if "loss" in shared or not shared else shared[0]


def course_of(
    strategy: str, reports: Mapping[str, Sequence[Mapping[str, Any]]], state: str = "succeeded", job: str = ""
) -> Course:
    """A course from the records of its workers: what the training library writes, each with what went by since the
    record before (docs/training.md)."""
    begin = min((_began(records[0]) for records in reports.values() if records), default=0.0)
    every = [(record, worker) for worker, records in reports.items() for record in records]
    ledgers = {worker: _Ledger() for worker in reports}
    marks = []
    for record, worker in sorted(every, key=lambda one: float(one[0]["time"])):
        ledgers[worker].add(record)
        marks.append(
            Mark(
                seconds=float(record["time"]) - begin,
                steps=max(ledger.steps for ledger in ledgers.values()),
                samples=sum(ledger.samples for ledger in ledgers.values()),
                sent=sum(ledger.sent for ledger in ledgers.values()),
                values={name: float(value) for name, value in record["values"].items()},
            )
        )
    spent = sum((ledger.seconds for ledger in ledgers.values()), Counter())
    stale = sum((ledger.staleness for ledger in ledgers.values()), Counter())
    whole, pushes = sum(spent.values()), sum(stale.values())
    return Course(
        strategy,
        tuple(marks),
        state,
        waited=spent["wait"] / whole if whole else 0.0,
        staleness=sum(by * count for by, count in stale.items()) / pushes if pushes else 0.0,
        job=job,
    )


class _Ledger:
    """One worker's records, added up."""

    def __init__(self) -> None:
        self.steps = self.samples = self.sent = 0
        self.seconds: Counter[str] = Counter()
        self.staleness: Counter[int] = Counter()

    def add(self, record: Mapping[str, Any]) -> None:
        self.steps, self.samples = int(record["step"]), int(record.get("samples") or 0)
        self.sent += int(record["bytes"]["sent"])
        self.seconds.update(record["seconds"])
        self.staleness.update({int(by): int(count) for by, count in record["staleness"].items()})


def _began(first: Mapping[str, Any]) -> float:
    """When a worker's training began: its first record less what had gone by until then."""
    return float(first["time"]) - sum(float(part) for part in first["seconds"].values())
