"""What boosted trees decide without reading anything: the task, the goal, the scores, the patience."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from shoal.adapters.boost.errors import BadData
from shoal.adapters.boost.goal import Goal, Seen, decide, values_of
from shoal.adapters.boost.scores import Patience, Score, combine, is_higher_better
from shoal.adapters.boost.task import read_task


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("x,y\n1,2\n")
    return tmp_path


def task(**keys: Any) -> Any:
    return read_task(json.dumps({"data": "rows.csv", **keys}))


def test_the_trainers_own_parameters_do_not_reach_the_framework(here: Path) -> None:
    made = task(params={"max_depth": 3, "rounds": 7, "every": 2, "weight": "w", "ignore": "id", "header": False})
    assert dict(made.params) == {"max_depth": 3}
    assert (made.rounds, made.every, made.weight, made.ignore, made.header) == (7, 2, "w", ("id",), False)


@pytest.mark.parametrize("name", ["num_boost_round", "n_estimators", "num_iterations"])
def test_rounds_may_be_called_as_the_frameworks_call_them(here: Path, name: str) -> None:
    assert task(params={name: 9}).rounds == 9


def test_it_stops_early_only_where_there_is_something_to_evaluate_on(here: Path) -> None:
    assert task().early_stopping == 0
    assert task(valid=0.2).early_stopping > 0
    assert task(valid=0.2, params={"early_stopping_rounds": 3}).early_stopping == 3


def test_an_address_is_read_from_the_input_of_that_name(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_INPUTS", str(here / "inputs"))
    parts = here / "inputs" / "data"
    parts.mkdir(parents=True)
    for name in ("b.csv", "a.csv", "README"):
        (parts / name).write_text("x\n")
    assert [path.name for path in task(data="pool://me/parts").data] == ["a.csv", "b.csv"]
    (parts / "c.npy").touch()
    with pytest.raises(BadData, match=r"several types \(.csv, .npy\)"):
        task(data="pool://me/parts")


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"params": {"rounds": 0}}, "rounds is 0; it must be a whole number from 1 on"),
        ({"params": {"rounds": 5, "n_estimators": 5}}, "are the same"),
        ({"params": {"header": "yes"}}, "header is 'yes'"),
        ({"data": "row.csv"}, "there is no row.csv"),
    ],
)
def test_a_task_that_cannot_be(here: Path, keys: dict[str, Any], says: str) -> None:
    with pytest.raises(BadData) as refused:
        task(**keys)
    assert says in refused.value.message


NUMBERS, TWO, THREE = Seen((0.5, 1.5, 2.0), False), Seen((1.0, 2.0), False), Seen((0.0, 1.0, 2.0), False)
TEXTS = Seen(("cat", "dog"), True)
MANY = values_of([[float(n) for n in range(50)]], False)


@pytest.mark.parametrize(
    ("seen", "objective", "num_class", "goal"),
    [
        (NUMBERS, None, None, Goal("number")),
        (TWO, None, None, Goal("yes or no", (1.0, 2.0))),
        (THREE, None, None, Goal("class", (0.0, 1.0, 2.0))),
        (TEXTS, None, None, Goal("yes or no", ("cat", "dog"))),
        (MANY, None, None, Goal("number")),
        (THREE, "reg:squarederror", None, Goal("number")),
        (THREE, "regression_l1", None, Goal("number")),
        (TWO, "multi:softmax", None, Goal("class", (1.0, 2.0))),
        (THREE, "multiclass", 4, Goal("class", (0.0, 1.0, 2.0, 3.0))),
    ],
)
def test_the_goal_is_what_the_objective_says_or_else_what_the_label_looks_like(
    seen: Seen, objective: str | None, num_class: int | None, goal: Goal
) -> None:
    assert decide("y", seen, objective, num_class) == goal


@pytest.mark.parametrize(
    ("seen", "objective", "num_class", "says"),
    [
        (
            TEXTS,
            "reg:squarederror",
            None,
            "holds texts such as 'cat', and objective 'reg:squarederror' predicts a number",
        ),
        (THREE, "binary:logistic", None, "has 3 different values"),
        (Seen((3.0,), False), "binary", None, "in every row"),
        (THREE, "multiclass", 2, "must hold 0 to 1"),
        (values_of([[str(n) for n in range(1001)]], True), None, None, "more than 1000"),
    ],
)
def test_a_label_that_contradicts_the_objective(seen: Seen, objective: str, num_class: int | None, says: str) -> None:
    with pytest.raises(BadData) as refused:
        decide("y", seen, objective, num_class)
    assert says in refused.value.message


def test_scores_of_two_workers_are_those_of_all_rows() -> None:
    mine = [Score("valid", "rmse", 3.0, False, 30), Score("valid", "l1", 1.0, False, 30)]
    other = [Score("valid", "rmse", 1.0, False, 10), Score("valid", "l1", 5.0, False, 10)]
    both = {score.name: score.value for score in combine([mine, other, []])}
    assert both == {"valid-rmse": math.sqrt((30 * 9 + 10) / 40), "valid-l1": 2.0}


@pytest.mark.parametrize(("metric", "higher"), [("auc", True), ("map@5", True), ("mape", False), ("ndcg@3-", True)])
def test_which_metrics_are_better_when_they_are_greater(metric: str, higher: bool) -> None:
    assert is_higher_better(metric) is higher


def test_patience_ends_after_rounds_without_a_better_value_and_knows_the_best() -> None:
    patience = Patience(2)
    for done, value in enumerate([3.0, 2.0, math.nan, 2.5], start=1):
        patience = patience.see(value, higher=False, done=done)
    assert (patience.best, patience.at) == (2.0, 2)
    assert patience.over(4) and not patience.over(3)
    assert not Patience(0).see(1.0, True, 1).over(1000)
