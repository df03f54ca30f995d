"""The keys of a job that trains without a script."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.errors import BadSpec
from shoal.job.plan import Served, make_plan
from shoal.job.spec import JobSpec, parse


def rows(**keys: Any) -> JobSpec:
    return parse({"framework": "xgboost", "data": "rows.csv", **keys})


def test_data_is_enough_to_run() -> None:
    spec = rows(label="y", workers=2)
    assert [(role.name, role.low) for role in spec.expand()] == [("worker", 2), ("tracker", 1)]
    assert spec.title == "rows"


def test_data_at_an_address_is_an_input_of_that_name() -> None:
    spec = rows(data="pool://me/rows.csv", valid="job://j1/test.csv", inputs={"extra": "pool://me/x"})
    assert spec.brought == {"extra": "pool://me/x", "data": "pool://me/rows.csv", "valid": "job://j1/test.csv"}
    assert rows(valid=0.2).brought == {}


def test_a_folder_of_files_has_no_ending() -> None:
    assert rows(data="pool://me/parts").data == "pool://me/parts"


def test_the_tracker_is_in_the_plan() -> None:
    plan = make_plan(rows(workers=2, resources={"gpu": 1}), Served(frameworks=("xgboost",)))
    assert [slot.role for slot in plan.slots] == ["worker", "worker", "tracker"]
    assert plan.totals()["gpu"] == 2


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"framework": "pytorch"}, "framework pytorch does not do here: take framework xgboost or lightgbm"),
        ({"framework": None}, "take framework xgboost or lightgbm"),
        ({"script": "train.py"}, "data and script contradict each other"),
        ({"command": ["x"]}, "data and command contradict each other"),
        ({"args": ["x"]}, "data and args contradict each other"),
        ({"data": None, "script": "train.py", "label": "y"}, "label and script contradict each other"),
        ({"data": None, "label": "y", "roles": {"worker": {"command": ["x"]}}}, "label needs data"),
        ({"data": "rows.xlsx"}, "of a type that is not read; known: .csv"),
        ({"data": "ftp://x/rows.csv"}, "is not an address"),
        ({"data": "pool://me/../you/rows.csv"}, "climbs out"),
        ({"data": 3}, "3 is not a file"),
        ({"label": ""}, "'' is not a column"),
        ({"label": True}, "True is not a column"),
        ({"valid": 1.5}, "must be 0.001 to 0.9"),
        ({"valid": True}, "neither a share of the rows"),
        ({"valid": "test.txt"}, "of a type that is not read"),
        ({"params": ["a=1"]}, "is not a map"),
        ({"params": {"a": {"b": 1}}}, "neither text, a number nor a list"),
        ({"data": "pool://me/rows.csv", "inputs": {"data": "pool://me/x"}}, "give the input another name"),
        ({"servers": 1}, "has no servers"),
        ({"roles": {"tracker": {"count": 2}}}, "has exactly 1"),
        ({"roles": {"trakcer": {"count": 1}}}, "did you mean 'tracker'"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(BadSpec) as refused:
        rows(**keys)
    assert says in refused.value.message
