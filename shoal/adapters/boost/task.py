"""One training as it was asked for: the files, the label, and which of `params` are the trainer's own."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal import contract
from shoal.adapters.boost.errors import BadData
from shoal.catalogue import nearest

ROUNDS = 100
EARLY_STOPPING = 20  # rounds without a better value, where there is something to evaluate on
EVERY = 25  # rounds between two checkpoints
FORMATS = (".csv", ".tsv", ".svm", ".libsvm", ".parquet", ".npy", ".npz")

# Other names of the number of rounds; the trainer has a loop of its own and must not pass them on.
_SAME = {
    "rounds": ("num_boost_round", "num_round", "n_estimators", "num_iterations", "num_iteration", "num_trees"),
    "early_stopping": ("early_stopping_rounds", "early_stopping_round", "n_iter_no_change"),
}


@dataclass(frozen=True)
class Task:
    """`params` goes to the framework as it stands."""

    data: tuple[Path, ...]
    valid: tuple[Path, ...] = ()
    share: float = 0.0  # of the rows of data, to evaluate on
    label: str | int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = ROUNDS
    early_stopping: int = 0  # 0: never
    every: int = EVERY
    weight: str | int | None = None
    ignore: tuple[str, ...] = ()
    header: bool | None = None  # None: seen from the first line

    @property
    def evaluates(self) -> bool:
        return bool(self.valid) or self.share > 0


def read_task(text: str) -> Task:
    """The task of a command line; BadData for a value that cannot be."""
    raw = json.loads(text)
    params = _renamed(raw.get("params") or {})
    valid = raw.get("valid")
    evaluates = valid is not None
    return Task(
        data=files("data", raw["data"]),
        valid=files("valid", valid) if isinstance(valid, str) else (),
        share=float(valid) if isinstance(valid, (int, float)) else 0.0,
        label=raw.get("label"),
        rounds=_whole(params, "rounds", ROUNDS, least=1),
        early_stopping=_whole(params, "early_stopping", EARLY_STOPPING if evaluates else 0, least=0),
        every=_whole(params, "every", EVERY, least=1),
        weight=params.pop("weight", None),
        ignore=_names(params.pop("ignore", ())),
        header=_truth(params.pop("header", None)),
        params=params,
    )


def files(key: str, named: str) -> tuple[Path, ...]:
    """The files of a path, or of the input that an address was brought to; a folder is all of its files of one type."""
    place = Path(os.environ[contract.INPUTS], key) if "://" in named else Path(named)
    if not place.exists():
        raise BadData(f"{key}: there is no {named} in the job's folder; check the path")
    found = [place] if place.is_file() else sorted(p for p in place.rglob("*") if p.suffix.lower() in FORMATS)
    kinds = {path.suffix.lower() for path in found}
    if not found:
        raise BadData(f"{key}: {named} holds no file of a type that is read; known: {', '.join(FORMATS)}")
    if len(kinds) > 1:
        raise BadData(f"{key}: {named} holds files of several types ({', '.join(sorted(kinds))}); keep one of them")
    if kinds - set(FORMATS):
        near = nearest(kinds.pop(), FORMATS)
        hint = f"did you mean {near}?" if near else f"known: {', '.join(FORMATS)}"
        raise BadData(f"{key}: {named} is of a type that is not read; {hint}")
    return tuple(found)


def _renamed(params: Mapping[str, Any]) -> dict[str, Any]:
    named = dict(params)
    for own, others in _SAME.items():
        for other in others:
            if other not in named:
                continue
            if own in named:
                raise BadData(f"params: {own} and {other} are the same; give one of them")
            named[own] = named.pop(other)
    return named


def _whole(params: dict[str, Any], name: str, usual: int, least: int) -> int:
    value = params.pop(name, usual)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise BadData(f"params: {name} is {value!r}; it must be a whole number from {least} on")
    return value


def _names(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, (list, tuple)) else (str(value),)


def _truth(value: Any) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise BadData(f"params: header is {value!r}; it must be true or false")
