"""State dicts as JSON and tensors: what comes back is what went in, type by type; nothing is pickled."""

from __future__ import annotations

import json
import math
import random
from collections import Counter, OrderedDict, deque
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.optim import lr_scheduler

from shoal.train.checkpoint import rng, tree
from shoal.train.errors import BadCheckpoint


def back(value: Any) -> Any:
    tensors: dict[str, Tensor] = {}
    packed = json.dumps(tree.pack(value, "it", tensors))
    return tree.unpack(json.loads(packed), tensors)


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5)
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers() | st.tuples(st.integers()), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=150)
@given(values)
def test_plain_data_comes_back_as_it_was(value: Any) -> None:
    found = back(value)
    assert found == value and repr(found) == repr(value)


def test_rare_kinds_come_back_too() -> None:
    value = {
        "nan": math.nan, "size": torch.Size([2, 3]), "counter": Counter({3: 1}), "queue": deque([1, 2]), "set": {1, 2},
        "dtype": torch.bfloat16, "device": torch.device("cpu"), "complex": 1 + 2j, "scalar": np.float32(1.5),
        "array": np.arange(3, dtype=np.uint32), "ordered": OrderedDict(a=1), "marked": {"$": 1},
    }  # fmt: skip
    found = back(value)
    assert math.isnan(found["nan"]) and found["size"] == (2, 3) and isinstance(found["counter"], Counter)
    assert found["queue"] == deque([1, 2]) and found["set"] == {1, 2} and found["dtype"] is torch.bfloat16
    assert found["device"] == torch.device("cpu") and found["complex"] == 1 + 2j
    assert type(found["scalar"]) is np.float32 and found["array"].tolist() == [0, 1, 2]
    assert found["ordered"] == {"a": 1} and found["marked"] == {"$": 1}


def test_tensors_lie_under_the_path_to_them_and_never_share_a_name() -> None:
    tensors: dict[str, Tensor] = {}
    tree.pack({"a": {1: torch.zeros(1), "1": torch.ones(1)}, "b": [torch.ones(2)]}, "it", tensors)
    assert list(tensors) == ["it.a.1", "it.a.1~2", "it.b.0"]


def test_what_it_cannot_hold_is_refused_with_its_place() -> None:
    with pytest.raises(BadCheckpoint, match=r"'it.a.0', a function"):
        back({"a": [lambda: 0]})


def test_marks_it_does_not_know_and_missing_tensors_are_refused() -> None:
    with pytest.raises(BadCheckpoint, match="'future'"):
        tree.unpack({"$": "future", "v": 1}, {})
    with pytest.raises(BadCheckpoint, match="lacks the tensor 'w'"):
        tree.unpack({"$": "tensor", "v": "w"}, {})


def optimizer_of(kind: str) -> torch.optim.Optimizer:
    weights = [torch.nn.Parameter(torch.arange(4.0).view(2, 2)), torch.nn.Parameter(torch.ones(3))]
    optimizer = getattr(torch.optim, kind)(weights, lr=0.1)
    for _ in range(2):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer.step(lambda: torch.zeros(())) if kind == "LBFGS" else optimizer.step()
    assert isinstance(optimizer, torch.optim.Optimizer)
    return optimizer


@pytest.mark.parametrize(
    "kind",
    ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adamax", "NAdam", "RAdam", "Adadelta", "Rprop", "ASGD", "LBFGS"],
)
def test_the_state_of_every_optimizer_can_be_kept(kind: str) -> None:
    optimizer, other = optimizer_of(kind), optimizer_of(kind)
    kept = back(optimizer.state_dict())
    other.load_state_dict(kept)
    assert str(other.state_dict()) == str(optimizer.state_dict())


SCHEDULERS: dict[str, Any] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4, 4]),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "Cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 9),
    "OneCycle": lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=20),
    "Cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.5, cycle_momentum=False),
    "Plateau": lr_scheduler.ReduceLROnPlateau,
    "Sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], milestones=[2]
    ),
    "Restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "Polynomial": lambda o: lr_scheduler.PolynomialLR(o, 5),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_schedulers_go_on_where_they_were(kind: str) -> None:
    def make() -> tuple[torch.optim.Optimizer, Any]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        return optimizer, SCHEDULERS[kind](optimizer)

    def advance(optimizer: Any, scheduler: Any, steps: int) -> list[float]:
        rates = []
        for _ in range(steps):
            optimizer.step()
            scheduler.step(*([1.0] if kind == "Plateau" else []))
            rates.append(optimizer.param_groups[0]["lr"])
        return rates

    optimizer, scheduler = make()
    advance(optimizer, scheduler, 3)
    kept, kept_optimizer = back(scheduler.state_dict()), back(optimizer.state_dict())
    other, again = make()
    other.load_state_dict(kept_optimizer)
    again.load_state_dict(kept)
    assert advance(other, again, 5) == advance(optimizer, scheduler, 5)


def test_random_numbers_go_on_where_they_were() -> None:
    def draw() -> list[Any]:
        return [torch.rand(2).tolist(), random.random(), np.random.rand(), np.random.randn(), own.initial_seed(),
                torch.rand(1, generator=own).item()]  # fmt: skip

    own = torch.Generator().manual_seed(1)
    np.random.randn()  # leaves one in store
    kept = back(rng.capture([own]))
    expected = draw()
    draw()
    rng.restore(kept, [own])
    assert draw() == expected


def test_random_numbers_set_aside_are_given_back() -> None:
    kept = rng.capture()
    with rng.aside():
        rng.sow(7)
        first = torch.rand(1), random.random(), np.random.rand()
    with rng.aside():
        rng.sow(7)
        assert (torch.rand(1), random.random(), np.random.rand()) == first
    assert torch.equal(kept["torch"], torch.get_rng_state())
    assert rng.mix("a", 1) == rng.mix("a", 1) != rng.mix("a", 2)
