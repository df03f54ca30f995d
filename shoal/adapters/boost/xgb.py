"""XGBoost as a ready trainer: histograms of every worker's rows are added up in each round."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import numpy as np
import xgboost

from shoal.adapters.boost.course import Course
from shoal.adapters.boost.errors import BadData
from shoal.adapters.boost.goal import Goal
from shoal.adapters.boost.scores import Score, is_higher_better
from shoal.adapters.boost.table import Table
from shoal.adapters.xgboost import context
from shoal.catalogue import nearest

VERSION = str(xgboost.__version__)
MODEL = "model.json"
RESERVED: tuple[str, ...] = ()
IN_TURN = False  # its sketches of the values are merged: any worker may have any rows
_OBJECTIVES = {"number": "reg:squarederror", "yes or no": "binary:logistic", "class": "multi:softprob"}
_UNUSED = re.compile(r"Parameters: \{ (.*?) \} are not used")
_EVALUATED = re.compile(r"\t(train|valid)-([^\t]+?):(\S+)")


def check(params: Mapping[str, Any]) -> None:
    """BadData for parameters that XGBoost does not know or that cannot be, before anything is read."""
    few = xgboost.DMatrix(np.zeros((1, 1)), np.zeros(1))
    asked = {"num_class": 2, **params} if str(params.get("objective", "")).startswith("multi") else dict(params)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            config = xgboost.Booster({**asked, "validate_parameters": True, "verbosity": 1}, [few]).save_config()
        except xgboost.core.XGBoostError as refused:
            raise BadData(f"params: XGBoost refuses them: {_first_line(refused)}") from None
    unused = [name for one in said for found in _UNUSED.findall(str(one.message)) for name in _quoted(found)]
    if unused:
        near = nearest(unused[0], list(_names(json.loads(config))))
        hint = f"did you mean {near!r}?" if near else "look into XGBoost's documentation of its parameters"
        raise BadData(f"params: XGBoost knows no {unused[0]!r}, or has no use for it with the others; {hint}")


def train(
    params: Mapping[str, Any], goal: Goal, rows: Table, valid: Table | None, threads: int, course: Course
) -> bytes:
    """The model with the best number of rounds, the same on every worker."""
    start = course.resume()
    told = {
        "objective": _OBJECTIVES[goal.kind],
        **({"num_class": len(goal.classes or ())} if goal.kind == "class" else {}),
        **({"nthread": threads} if threads else {}),
        "seed_per_iteration": True,  # a training that was interrupted draws the same rows as one that was not
        **params,
    }
    with context():
        sets = {name: _matrix(table) for name, table in (("train", rows), ("valid", valid)) if table is not None}
        booster = xgboost.Booster(told, list(sets.values()), bytearray(start) if start else None)
        while course.done < course.task.rounds:
            booster.update(sets["train"], course.done)
            said = booster.eval_set([(matrix, name) for name, matrix in sets.items()], course.done)
            if course.after(list(_scores(said)), lambda: bytes(booster.save_raw("json"))):
                break
        return bytes(booster[: course.best].save_raw("json"))


def digest(model: bytes) -> str:
    return sha256(model).hexdigest()


def _matrix(table: Table) -> xgboost.DMatrix:
    shape = table.shape
    types = ["c" if name in shape.categories else "q" for name in shape.names]
    try:
        return xgboost.DMatrix(
            table.matrix,
            table.label,
            weight=table.weight,
            feature_names=list(shape.names),
            feature_types=types,
            enable_categorical=bool(shape.categories),
        )
    except ValueError as refused:
        raise BadData(f"XGBoost refuses the data: {_first_line(refused)}") from None


def _scores(said: str) -> Iterator[Score]:
    """What XGBoost says of a round; its values are those of all workers' rows already."""
    for rows_of, metric, value in _EVALUATED.findall(said):
        yield Score(rows_of, metric, float(value), is_higher_better(metric))


def _names(config: Mapping[str, Any]) -> Iterator[str]:
    for name, value in config.items():
        yield name
        if isinstance(value, dict):
            yield from _names(value)


def _quoted(text: str) -> list[str]:
    return re.findall(r'"([^"]+)"', text)


def _first_line(error: Exception) -> str:
    """Without the time, the place in the source and the stack that XGBoost puts around its words."""
    line = str(error).splitlines()[0] if str(error) else type(error).__name__
    return re.sub(r"^\[[\d:]+\] \S+?: ", "", line)
