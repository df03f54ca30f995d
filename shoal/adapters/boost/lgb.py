"""LightGBM as a ready trainer: its data-parallel learner, each worker with the rows it read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

import lightgbm
import numpy as np

from shoal.adapters.boost.course import Course
from shoal.adapters.boost.errors import BadData
from shoal.adapters.boost.goal import Goal
from shoal.adapters.boost.scores import Score
from shoal.adapters.boost.table import Table
from shoal.adapters.lightgbm import params as machines
from shoal.catalogue import nearest

VERSION = str(lightgbm.__version__)
MODEL = "model.txt"
RESERVED = ("machines", "num_machines", "local_listen_port", "machine_list_filename", "pre_partition")
IN_TURN = True  # each worker finds the bins of some columns from its own rows alone, which must be a fair sample
_OBJECTIVES = {"number": "regression", "yes or no": "binary", "class": "multiclass"}
_UNKNOWN = re.compile(r"Unknown parameter: (\S+)")


class Ear:
    """Hears what LightGBM says of the parameters, and afterwards passes on what it says."""

    def __init__(self) -> None:
        self.heard: list[str] | None = []

    def info(self, message: str) -> None:
        if self.heard is None:
            print(message.strip(), flush=True)
        else:
            self.heard.append(message)

    warning = info


def check(params: Mapping[str, Any]) -> None:
    """BadData for parameters that LightGBM does not know or that cannot be, before anything is read."""
    ear = Ear()
    lightgbm.register_logger(ear)
    asked = {"num_class": 2, **params} if str(params.get("objective", "")).startswith("multi") else dict(params)
    few = lightgbm.Dataset(np.arange(40.0).reshape(20, 2), np.arange(20.0) % 2)
    try:
        lightgbm.Booster({**asked, "verbosity": 1}, few)
    except lightgbm.basic.LightGBMError as refused:
        raise BadData(f"params: LightGBM refuses them: {str(refused).splitlines()[0]}") from None
    unknown = [name for line in ear.heard or () for name in _UNKNOWN.findall(line)]
    ear.heard = None
    if unknown:
        near = nearest(unknown[0], _names())
        hint = f"did you mean {near!r}?" if near else "look into LightGBM's documentation of its parameters"
        raise BadData(f"params: LightGBM knows no {unknown[0]!r}; {hint}")


def train(
    params: Mapping[str, Any], goal: Goal, rows: Table, valid: Table | None, threads: int, course: Course
) -> bytes:
    """The model with the best number of rounds, the same on every worker."""
    start = course.resume()
    told = {
        "objective": _OBJECTIVES[goal.kind],
        **({"num_class": len(goal.classes or ())} if goal.kind == "class" else {}),
        **({"num_threads": threads} if threads else {}),
        "verbosity": -1,
        **machines(),
        **params,
    }
    own = _dataset(rows)
    sets = {"train": own}
    if valid is not None and len(valid):
        sets["valid"] = _dataset(valid, own)
    counts = {"train": _weight(rows), "valid": _weight(valid) if valid is not None else 0.0}

    def after(env: Any) -> None:
        scores = list(_scores(env.evaluation_result_list, counts))
        if course.after(scores, lambda: str(env.model.model_to_string(num_iteration=-1)).encode()):
            raise lightgbm.callback.EarlyStopException(course.best - 1, env.evaluation_result_list or [])

    booster = lightgbm.train(
        told,
        own,
        course.task.rounds - course.done,
        valid_sets=list(sets.values()),
        valid_names=list(sets),
        init_model=lightgbm.Booster(model_str=start.decode()) if start else None,
        callbacks=[after],
    )
    return str(booster.model_to_string(num_iteration=course.best)).encode()


def digest(model: bytes) -> str:
    """Of the trees; behind them stand the parameters, among which every worker has a port of its own."""
    return sha256(model.partition(b"\nparameters:")[0]).hexdigest()


def _dataset(table: Table, like: Any = None) -> Any:
    shape = table.shape
    return lightgbm.Dataset(
        table.matrix,
        table.label,
        weight=table.weight,
        reference=like,
        feature_name=[_plain_name(name) for name in shape.names],
        categorical_feature=shape.categorical,
        free_raw_data=False,
    )


def _scores(told: Any, rows: Mapping[str, float]) -> Iterator[Score]:
    """LightGBM evaluates each worker's own rows; what they mean together is agreed afterwards."""
    for rows_of, metric, value, higher, *_ in told or ():
        yield Score(rows_of, metric, float(value), bool(higher), rows[rows_of])


def _weight(table: Table) -> float:
    return float(len(table) if table.weight is None else table.weight.sum())


def _plain_name(name: str) -> str:
    """LightGBM refuses what JSON would have to escape, and makes blanks underscores by itself."""
    return re.sub(r"[\s\"',:\[\]{}]", "_", name)


def _names() -> list[str]:
    """Every name it knows; none when this version does not tell."""
    aliases: Any = getattr(lightgbm.basic, "_ConfigAliases", None)
    known = aliases._get_all_param_aliases() if hasattr(aliases, "_get_all_param_aliases") else {}
    return sorted({name for names in known.values() for name in names})
