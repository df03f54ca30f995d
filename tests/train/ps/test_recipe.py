"""An optimizer becomes data and an optimizer again, or is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from shoal.train.errors import BadOptimizer
from shoal.train.ps.recipe import ELEMENTWISE, Recipe


def params() -> list[torch.Tensor]:
    return [torch.zeros(3, requires_grad=True)]


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_every_class_survives_the_wire(name: str) -> None:
    recipe = Recipe.of(getattr(torch.optim, name)(params(), lr=0.125))
    assert recipe is not None
    again = Recipe.from_json(json.loads(json.dumps(recipe.to_json())))
    assert again == recipe and again.groups[0]["lr"] == 0.125
    built = again.build(0, torch.zeros(3))
    assert type(built) is getattr(torch.optim, name)
    mine = {key: value for key, value in built.param_groups[0].items() if key in recipe.groups[0]}
    assert mine == dict(recipe.groups[0])


def test_what_does_not_act_by_elements_stays_on_the_worker() -> None:
    class Mine(torch.optim.SGD):
        pass

    assert Recipe.of(torch.optim.LBFGS(params())) is None
    assert Recipe.of(torch.optim.SparseAdam([torch.zeros(3, requires_grad=True)])) is None
    assert Recipe.of(Mine(params(), lr=0.1)) is None
    assert Recipe.of(torch.optim.SGD(params(), lr=0.1, differentiable=True)) is None


def test_what_schedulers_keep_in_the_group_is_not_sent() -> None:
    optimizer = torch.optim.SGD(params(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    recipe = Recipe.of(optimizer)
    assert recipe is not None and "initial_lr" not in recipe.groups[0] and "params" not in recipe.groups[0]


def test_changes_are_found_and_taken_over() -> None:
    groups: list[dict[str, Any]] = [{"params": params()}, {"params": params(), "lr": 0.5}]
    optimizer = torch.optim.Adam(groups, lr=0.1)
    first = Recipe.of(optimizer)
    assert first is not None and first.changes(first) == {}
    optimizer.param_groups[1]["lr"] = torch.tensor(0.25)
    optimizer.param_groups[0]["betas"] = (0.5, 0.75)
    second = Recipe.of(optimizer)
    assert second is not None
    changes = json.loads(json.dumps(second.changes(first)))
    assert changes == {"0": {"betas": [0.5, 0.75]}, "1": {"lr": 0.25}}
    assert first.changed(changes) == second


@pytest.mark.parametrize("changes", [{"1": {"lr": 1.0}}, {"x": {"lr": 1.0}}, {"0": {"wings": 2}}, {"-1": {"lr": 1.0}}])
def test_changes_of_another_optimizer_are_refused(changes: dict[str, dict[str, float]]) -> None:
    recipe = Recipe.of(torch.optim.SGD(params(), lr=0.1))
    assert recipe is not None
    with pytest.raises(BadOptimizer, match="SGD has 1 groups"):
        recipe.changed(changes)


def test_groups_added_later_are_refused() -> None:
    optimizer = torch.optim.SGD(params(), lr=0.1)
    before = Recipe.of(optimizer)
    optimizer.add_param_group({"params": params()})
    after = Recipe.of(optimizer)
    assert before is not None and after is not None
    with pytest.raises(BadOptimizer, match="1 groups and is SGD with 2"):
        after.changes(before)


def test_a_name_from_the_wire_chooses_nothing_else() -> None:
    with pytest.raises(BadOptimizer, match="'LBFGS' cannot run"):
        Recipe.from_json({"name": "LBFGS", "groups": []})
    with pytest.raises(BadOptimizer, match="is no number"):
        Recipe.from_json({"name": "SGD", "groups": [{"lr": {"a": 1}}]})
