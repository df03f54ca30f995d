"""The keys of a job that trains from data without a script: `data`, `label`, `valid`, `params`; how each is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from shoal.frameworks import FRAMEWORKS, Framework
from shoal.job import bounds

FORMATS = (".csv", ".tsv", ".svm", ".libsvm", ".parquet", ".npy", ".npz")
INPUTS = ("data", "valid")  # keys that may hold an address; then they are inputs of that name
KEYS = ("data", "label", "valid", "params")

_ADDRESS = re.compile(r"(pool|job|dataset)://[^\s]+")


def is_address(value: object) -> bool:
    return isinstance(value, str) and "://" in value


def _file(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r} is not a file; write its path, or an address such as pool://me/rows.csv")
    if "://" in value and not _ADDRESS.fullmatch(value):
        raise ValueError(f"{value!r} is not an address; write pool://me/FILE, job://ID/FILE or dataset://NAME@VERSION")
    if is_address(value) and ".." in PurePosixPath(value).parts:
        raise ValueError(f"{value!r} climbs out of its pool with '..'")
    if len(value) > bounds.PATH_LENGTH.high:
        raise ValueError(f"has {len(value)} characters, at most {bounds.PATH_LENGTH.high:g}: {bounds.PATH_LENGTH.why}")
    suffix = PurePosixPath(value.partition("@")[0] if value.startswith("dataset://") else value).suffix.lower()
    if suffix not in ("", *FORMATS):  # without one it is a folder of such files
        raise ValueError(f"{value!r} is of a type that is not read; known: {', '.join(FORMATS)}")
    return value


def _label(value: Any) -> str | int:
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        raise ValueError(f"{value!r} is not a column; write its name, or its number from 0 on")
    return value


def _valid(value: Any) -> float | str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"{value!r} is neither a share of the rows, such as 0.2, nor a file")
    if isinstance(value, str):
        return _file(value)
    bounds.VALID.check(value)
    return float(value)


def _params(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r} is not a map; write for example {{max_depth: 4, eta: 0.1, rounds: 200}}")
    if len(value) > bounds.PARAMS.high:
        raise ValueError(f"has {len(value)} entries, at most {bounds.PARAMS.high:g}: {bounds.PARAMS.why}")
    return {_name(name): _plain(name, item) for name, item in value.items()}


def _name(name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise ValueError(f"{name!r} is not the name of a parameter; write text")
    return name


def _plain(name: Any, value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(one, (str, int, float, bool)) for one in value):
        return list(value)
    raise ValueError(f"{name}: {value!r} is neither text, a number nor a list of them")


Data = Annotated[str, BeforeValidator(_file)]
Label = Annotated[str | int, BeforeValidator(_label)]
Valid = Annotated[
    float | str,
    BeforeValidator(_valid),
    Field(json_schema_extra={"bounds": bounds.VALID.text(), "why": bounds.VALID.why}),
]
Params = Annotated[dict[str, Any], BeforeValidator(_params)]


def check(row: Framework, said: Mapping[str, Any], inputs: Mapping[str, str]) -> None:
    """ValueError for keys that contradict each other. `said` are the job's keys that are not left out."""
    ours = [key for key in KEYS if key in said]
    if not ours:
        return
    if not row.trains_data:
        known = " or ".join(name for name, one in FRAMEWORKS.items() if one.trains_data)
        raise ValueError(
            f"{ours[0]} is for training without a script, which framework {row.name} does not do here: "
            f"take framework {known}, or give the script's own flags in args"
        )
    for other in ("script", "command", "args"):
        if other in said:
            raise ValueError(
                f"{ours[0]} and {other} contradict each other: {ours[0]} is read by Shoal's own trainer; give a script "
                "its files as inputs and args"
            )
    if "data" not in said:
        raise ValueError(f"{ours[0]} needs data: give the file to train from")
    for key in INPUTS:
        if is_address(said.get(key)) and key in inputs:
            raise ValueError(f"inputs.{key} is where {key}: {said[key]} goes; give the input another name")
