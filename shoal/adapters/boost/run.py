"""One training from beginning to end: parameters, rows, rounds, model, report."""

from __future__ import annotations

import importlib
import json
import os
import time
from typing import Any

from shoal.adapters.boost.course import Course
from shoal.adapters.boost.errors import BadData
from shoal.adapters.boost.keeper import Keeper, write_whole
from shoal.adapters.boost.table import Table, load, load_valid, together
from shoal.adapters.boost.task import Task
from shoal.adapters.meeting import Meeting
from shoal.train.world import World

TRAINERS = {"xgboost": "shoal.adapters.boost.xgb", "lightgbm": "shoal.adapters.boost.lgb"}
PACKAGES = {"xgboost": "xgboost-cpu", "lightgbm": "lightgbm"}
REPORT = "report.json"


def run(framework: str, task: Task, world: World) -> None:
    """Trains, and leaves the model and a report in the outputs. BadData says what is wrong with what was given."""
    trainer = _trainer(framework)
    _check_reserved(framework, trainer.RESERVED, task)
    trainer.check(task.params)
    with Meeting(world) as meeting:
        began = time.monotonic()
        rows, valid = _rows(task, meeting, trainer.IN_TURN)
        if world.rank == 0:
            _tell(task, rows, valid, world)
        course = Course(task, meeting, Keeper(world.outputs))
        course.listen()
        model = trainer.train(task.params, rows.shape.goal, rows, valid, _threads(world), course)
        _must_be_alike(meeting.gather(trainer.digest(model)))
        if world.rank == 0:
            _leave(world, trainer, framework, task, rows, course, model, time.monotonic() - began)


def _trainer(framework: str) -> Any:
    try:
        return importlib.import_module(TRAINERS[framework])
    except ImportError as missing:
        raise BadData(
            f"this job's interpreter cannot import {framework} ({missing}); install {PACKAGES[framework]} there, or "
            "name an environment that has it"
        ) from None


def _check_reserved(framework: str, reserved: tuple[str, ...], task: Task) -> None:
    for name in reserved:
        if name in task.params:
            raise BadData(f"params: {name} is set by Shoal, which knows the workers of {framework}; leave it out")


def _rows(task: Task, meeting: Meeting, in_turn: bool) -> tuple[Table, Table | None]:
    objective, num_class = task.params.get("objective"), task.params.get("num_class")
    rows = load(task, meeting, None if objective is None else str(objective), num_class, in_turn)
    if task.valid:
        return rows, load_valid(task, meeting, rows)
    if not task.share:
        return rows, None
    own, valid = rows.split(task.share)

    def check() -> None:
        if not len(own):
            raise BadData(f"valid: {task.share:g} of the rows leaves worker-{meeting.rank} none; take fewer workers")

    together(meeting, check)
    if not sum(meeting.gather(len(valid))):
        raise BadData(f"valid: {task.share:g} of {rows.total} rows is none; give a greater share, or a file")
    return own, valid


def _must_be_alike(digests: list[str]) -> None:
    """Whoever has another model was not in the same training."""
    others = [f"worker-{rank}" for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise BadData(f"{', '.join(others)} grew another model than worker-0: do all have the same version?")


def _threads(world: World) -> int:
    """This worker's share of the cores; 0 where the job or the user has said."""
    if "OMP_NUM_THREADS" in os.environ:
        return 0
    beside = sum(worker.node == world.node for worker in world.workers) or 1
    return max(1, len(os.sched_getaffinity(0)) // beside)


def _tell(task: Task, rows: Table, valid: Table | None, world: World) -> None:
    shape = rows.shape
    print(f"{rows.total} rows for {world.size} workers, {len(shape.names)} columns; {shape.goal.words(shape.label)}")
    for name, known in shape.categories.items():
        print(f"column {name!r} holds texts: {len(known)} categories")
    if valid is not None and task.early_stopping:
        print(f"stops when {task.early_stopping} rounds bring nothing better (params early_stopping)", flush=True)


def _leave(
    world: World,
    trainer: Any,
    framework: str,
    task: Task,
    rows: Table,
    course: Course,
    model: bytes,
    seconds: float,
) -> None:
    world.outputs.mkdir(parents=True, exist_ok=True)
    write_whole(world.outputs / trainer.MODEL, model)
    shape = rows.shape
    report = {
        "framework": framework,
        "version": trainer.VERSION,
        "model": trainer.MODEL,
        "rows": rows.total,
        "workers": world.size,
        "label": shape.label,
        "predicts": shape.goal.kind,
        "classes": shape.goal.classes,
        "columns": shape.names,
        "categories": shape.categories,
        "params": dict(task.params),
        "rounds": course.done,
        "best_round": course.best,
        "scores": course.history[course.best - 1] if course.history else {},
        "stopped": "asked" if course.stopped else "early" if course.early else None,
        "resumed_after": course.resumed or None,
        "seconds": round(seconds, 3),
        "history": course.history,
    }
    write_whole(world.outputs / REPORT, json.dumps(report, indent=1).encode())
    if not course.stopped:
        Keeper(world.outputs).clear()
    scores = " ".join(f"{name}={value:.6g}" for name, value in report["scores"].items())
    print(f"kept {course.best} of {course.done} rounds in {trainer.MODEL}: {scores}", flush=True)
