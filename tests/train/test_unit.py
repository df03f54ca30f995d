"""What `wrap` refuses, and what a unit knows of its model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

from shoal.train.errors import BadModel, BadOptimizer, TrainError
from shoal.train.unit import Unit, check, find, fingerprint, names, parameter_bytes, scalar, trained, untrained


def sgd(model: nn.Module) -> SGD:
    return SGD(model.parameters(), lr=0.1)


def frozen() -> nn.Linear:
    return nn.Linear(2, 1).requires_grad_(False)


MODEL = nn.Linear(2, 1)


@pytest.mark.parametrize(
    ("model", "optimizers", "error", "message"),
    [
        (nn.ReLU(), (sgd(MODEL),), BadModel, "a ReLU has no parameters"),
        (frozen(), (sgd(MODEL),), BadModel, "all 2 parameters of a Linear are frozen.*requires_grad"),
        (nn.LazyLinear(1), (sgd(MODEL),), BadModel, "weight, bias of a LazyLinear have no shape yet"),
        (3, (sgd(MODEL),), BadModel, "was given a int as the model"),
        (None, (), BadModel, "was given None as the model"),
        (MODEL, (), BadOptimizer, "no optimizer"),
        (MODEL, ([sgd(MODEL)],), BadOptimizer, r"write the optimizers one after another, run.wrap\(model, \*opt"),
        (MODEL, (torch.optim.lr_scheduler.StepLR(sgd(MODEL), 1),), BadOptimizer, "StepLR: a scheduler stays as it is"),
        (MODEL, (nn.MSELoss(),), BadOptimizer, "a MSELoss as an optimizer"),
        (MODEL, (sgd(nn.Linear(3, 1)),), BadOptimizer, r"2 parameters that are not the model's \(.*shape \(1, 3\)"),
        (MODEL, (SGD([torch.zeros(1)], 0.1),), BadOptimizer, "steps no trainable parameter"),
        (MODEL, (sgd(MODEL), sgd(MODEL)), BadOptimizer, "is in two optimizers"),
    ],
)
def test_what_cannot_be_trained_is_refused(model: Any, optimizers: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        check(model, optimizers, [])


def test_the_same_model_or_optimizer_is_wrapped_once() -> None:
    optimizer = sgd(MODEL)
    before = [Unit(0, MODEL, MODEL, (optimizer,))]
    with pytest.raises(BadModel, match="wrapped already"):
        check(MODEL, (sgd(MODEL),), before)
    with pytest.raises(BadOptimizer, match="wrapped already"):
        check(nn.Sequential(MODEL), (optimizer,), before)
    with pytest.raises(BadOptimizer, match="same optimizer twice"):
        check(MODEL, (optimizer, optimizer), [])


def test_tied_parameters_count_once_and_frozen_ones_not() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    model[2].bias.requires_grad_(False)
    optimizer = sgd(model)
    check(model, (optimizer,), [])
    assert names(model, trained(optimizer)) == ["0.weight", "2.weight"]
    assert parameter_bytes([optimizer]) == 2 * 4 * 4


def test_parameters_in_no_optimizer_are_known() -> None:
    model = nn.Linear(2, 1)
    unit = Unit(0, model, model, (SGD([model.weight], 0.1),))
    assert untrained(unit) == ["bias"]


def test_a_fingerprint_tells_models_apart() -> None:
    assert fingerprint(nn.Linear(2, 1)) == fingerprint(nn.Linear(2, 1))
    assert fingerprint(nn.Linear(2, 1)) != fingerprint(nn.Linear(1, 2))
    assert fingerprint(nn.Linear(2, 1)) != fingerprint(frozen())


def test_a_loss_must_be_one_number() -> None:
    loss = torch.tensor([1.0])
    assert scalar(loss, "run.step") is loss
    with pytest.raises(BadModel, match=r"loss of run.step has shape \(2,\)"):
        scalar(torch.zeros(2), "run.step")
    with pytest.raises(BadModel, match="loss of run.step is a float"):
        scalar(1.0, "run.step")


def test_a_model_that_was_not_wrapped_is_not_found() -> None:
    with pytest.raises(TrainError, match="was not wrapped"):
        find([], MODEL)
