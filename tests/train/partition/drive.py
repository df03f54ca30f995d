"""What a worker does in the tests with real processes: trains a model cut over workers and the same model alone.

Each case runs in the group of this launch and prints `ok <case>`: a launch costs seconds, a case next to nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from shoal.errors import ShoalError
from shoal.strategy import parse
from shoal.train import process_group
from shoal.train.api import Setting
from shoal.train.errors import BadModel, Disagreement
from shoal.train.partition.split import MARK
from shoal.train.seeing import Seeing
from shoal.train.strategies import PARTITIONS
from shoal.train.world import World
from tests.train.partition import models
from tests.train.partition.models import Encoder, Gpt, Mixed, Mlp, Whole

STEPS, ROWS, RATE = 3, 16, 0.1
DATA: dict[type[nn.Module], tuple[Any, Any]] = {
    Mlp: (models.numbers, nn.MSELoss()),
    Whole: (models.wholes, models.whole_loss),
    Gpt: (models.words, models.word_loss),
    Encoder: (models.words, models.word_loss),
    Mixed: (models.words, models.word_loss),
}
WORLD = World.read()
DEVICE = os.environ.get("TEST_DEVICE", "cpu")  # where the model is when it is wrapped


def partition(strategy: str) -> Any:
    chosen = parse(strategy)
    return PARTITIONS.load(chosen.name)(
        Setting(world=WORLD, options=chosen.options, group=lambda: None, seeing=Seeing())  # type: ignore[arg-type, return-value]
    )


def part_of(cut: Any, value: Tensor) -> Tensor:
    return value.chunk(int(cut.replicas))[int(cut.replica)]


def alone(
    kind: Callable[[], nn.Module], rate: float, clip: float, rows: int, exact: bool
) -> tuple[nn.Module, list[float]]:
    """One process with the whole batch."""
    torch.manual_seed(0)
    model, losses = kind(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.0 if exact else 0.9)
    data, loss_fn = DATA[type(model)]
    for step in range(1 if exact else STEPS):
        x, y = data(rows if step else rows // 2, step)
        loss = loss_fn(model(x), y)
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return model, losses


class Cut:
    """The same training over workers. Every worker starts from other values; the first one's count."""

    def __init__(self, strategy: str, kind: Callable[[], nn.Module], rate: float, exact: bool = False) -> None:
        torch.manual_seed(WORLD.rank)
        model = kind()
        if WORLD.rank == 0:
            torch.manual_seed(0)
            model = kind()
        self.data, self.loss_fn = DATA[type(model)]
        model.to(DEVICE)
        halves = list(model.parameters())[:1], list(model.parameters())[1:]
        self.optimizer = torch.optim.SGD(
            [{"params": halves[0]}, {"params": halves[1]}], lr=rate, momentum=0.0 if exact else 0.9
        )
        self.cut = partition(strategy)
        self.model = self.cut.attach(model, [self.optimizer])
        self.losses: list[float] = []
        self.steps = 1 if exact else STEPS

    def train(self, clip: float, rows: int, by_hand: bool) -> None:
        for step in range(self.steps):
            x, y = (part_of(self.cut, one).to(DEVICE) for one in self.data(rows if step else rows // 2, step))
            if by_hand:
                loss = self.loss_fn(self.model(x), y)
                loss.backward()
            else:
                loss = self.cut.step(self.model, self.loss_fn, [x], y)
            if clip:
                nn.utils.clip_grad_norm_(self.model.parameters(), clip)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(float(loss.detach()))


def equals_alone(
    strategy: str, kind: Callable[[], nn.Module], exact: bool = False, by_hand: bool = False, clip: float = 0.0
) -> None:
    """Losses, parameters and outputs are those of one process; the state is whole, and goes back in."""
    rate = 0.25 if exact else RATE
    rows = ROWS
    one, losses = alone(kind, rate, clip, rows, exact)
    two = Cut(strategy, kind, rate, exact)
    two.train(clip, rows, by_hand)
    near: dict[str, Any] = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-5, "atol": 1e-5}
    if not by_hand:
        torch.testing.assert_close(torch.tensor(two.losses), torch.tensor(losses), **near)
    state, expected = two.model.state_dict(), one.state_dict()
    assert list(state) == list(expected)
    for name, value in state.items():
        assert type(value) is Tensor and not value.is_meta
        torch.testing.assert_close(value, expected[name], msg=name, **near)
    x = two.data(8, 99)[0]
    with torch.no_grad():
        torch.testing.assert_close(two.model.eval()(x.to(DEVICE)).cpu(), one.eval()(x), rtol=1e-5, atol=1e-5)
    _goes_back(two, state)
    two.cut.finish()


def _goes_back(two: Cut, state: dict[str, Tensor]) -> None:
    kept = two.cut.state()
    momenta = kept["optimizers"][0]["state"]
    if two.optimizer.defaults["momentum"]:
        assert set(momenta) == {name for name, _ in two.model.named_parameters()}
        assert all(momenta[name]["momentum_buffer"].shape == state[name].shape for name in momenta)
    two.model.load_state_dict({name: torch.zeros_like(value) for name, value in state.items()})
    assert all(not value.any() for value in two.model.state_dict().values())
    two.cut.load(state, kept)
    assert all(torch.equal(value, state[name]) for name, value in two.model.state_dict().items())
    again = two.cut.state()["optimizers"][0]["state"]
    assert all(torch.equal(momenta[n][key], again[n][key]) for n in momenta for key in momenta[n])


def moves(first: str, second: str) -> None:
    """State of one strategy goes on under another, as if nothing had happened."""
    before, after = (Cut(one, Gpt, RATE) for one in (first, second))
    before.train(0.0, ROWS, False)
    if second.startswith("pipeline"):  # cut by its first batch
        after.train(0.0, ROWS, False)
    after.cut.load(before.cut.model_state(before.model), before.cut.state())
    for one in (before, after):
        one.losses.clear()
        one.model.train()
        one.train(0.0, ROWS, False)
    torch.testing.assert_close(torch.tensor(after.losses), torch.tensor(before.losses), rtol=1e-5, atol=1e-5)
    for one in (before, after):
        one.cut.finish()


def refuses(kind: type[ShoalError], says: str, act: Callable[[], Any]) -> None:
    try:
        act()
    except kind as error:
        assert says in str(error), f"{says!r} is not in {error}"
    else:
        raise AssertionError(f"nothing was refused: {says}")


def main(names: list[str], cases: dict[str, Callable[[], None]]) -> None:
    torch.set_num_threads(1)
    process_group.join(WORLD)  # kept open between the cases
    for name in names or list(cases):
        cases[name]()
        print("ok", name, flush=True)
    process_group.leave()


def given_plan(model: nn.Module) -> dict[str, str]:
    return {"0": "columns", "2": "rows", "4": "gathered", "1": "keep"}


def two() -> dict[str, Callable[[], None]]:
    return {
        "fsdp exact": lambda: equals_alone("fsdp:block=0", Whole, exact=True),
        "fsdp mlp clipped by hand": lambda: equals_alone("fsdp", Mlp, by_hand=True, clip=0.5),
        "fsdp gpt blocks": lambda: equals_alone("fsdp:block=0,reshard=false", Gpt, clip=0.5),
        "fsdp encoder tied": lambda: equals_alone("fsdp:block=0", Encoder),
        "fsdp mixed": lambda: equals_alone("fsdp", Mixed),
        "tensor exact": lambda: equals_alone("tensor", Whole, exact=True),
        "tensor mlp by hand": lambda: equals_alone("tensor", Mlp, by_hand=True, clip=0.5),
        "tensor gpt": lambda: equals_alone("tensor", Gpt, clip=0.5),
        "tensor gpt tied": lambda: equals_alone("tensor", _tied),
        "tensor encoder tied": lambda: equals_alone("tensor", Encoder, clip=0.5),
        "tensor mixed": lambda: equals_alone("tensor", Mixed, clip=0.5),
        "tensor given": lambda: equals_alone("tensor:plan=given_plan", Mlp),
        "pipeline exact": lambda: equals_alone("pipeline", Whole, exact=True),
        "pipeline gpipe mlp": lambda: equals_alone("pipeline:schedule=gpipe,microbatches=3", Mlp),
        "pipeline gpt": lambda: equals_alone("pipeline", Gpt),
        "pipeline encoder": lambda: equals_alone("pipeline:microbatches=8", _untied),
        "pipeline interleaved": lambda: equals_alone("pipeline:schedule=interleaved", Gpt),
        "pipeline one stage": lambda: equals_alone("pipeline:stages=1", Mlp),
        "fsdp to tensor": lambda: moves("fsdp:block=0", "tensor"),
        "tensor to pipeline": lambda: moves("tensor", "pipeline"),
        "pipeline to fsdp": lambda: moves("pipeline", "fsdp"),
        "marks": _marks,
        "bad input": _bad_input,
    }


def three() -> dict[str, Callable[[], None]]:
    return {
        "pipeline 2x1": lambda: equals_alone("pipeline:replicas=2x1", Gpt),
        "pipeline 1x2 gpipe": lambda: equals_alone("pipeline:replicas=1x2,schedule=gpipe", Mlp),
        "pipeline 1x2 exact": lambda: equals_alone("pipeline:replicas=1x2,microbatches=4", Whole, exact=True),
        "pipeline 3": lambda: equals_alone("pipeline", _untied),
        "2x1 to 3": lambda: moves("pipeline:replicas=2x1", "pipeline"),
    }


def four() -> dict[str, Callable[[], None]]:
    return {
        "fsdp 4": lambda: equals_alone("fsdp:block=0", Gpt, clip=0.5),
        "fsdp 2 x 2": lambda: equals_alone("fsdp:replicas=2,block=0", Gpt, clip=0.5),
        "fsdp 2 x 2 exact": lambda: equals_alone("fsdp:replicas=2", Whole, exact=True),
        "tensor 4": lambda: equals_alone("tensor", Encoder),
        "tensor 2 x replicate": lambda: equals_alone("tensor:size=2", Gpt, clip=0.5),
        "tensor 2 x replicate exact": lambda: equals_alone("tensor:size=2", Whole, exact=True),
        "tensor 2 x shard": lambda: equals_alone("tensor:size=2,copies=shard", Gpt, clip=0.5),
        "tensor 2 x shard mixed": lambda: equals_alone("tensor:size=2,copies=shard", Mixed),
        "pipeline 4": lambda: equals_alone("pipeline", Gpt),
        "pipeline 2 x 2": lambda: equals_alone("pipeline:stages=2", Gpt),
        "pipeline 2 x 2 exact": lambda: equals_alone("pipeline:stages=2,schedule=gpipe", Whole, exact=True),
        "pipeline 1x2x1": lambda: equals_alone("pipeline:replicas=1x2x1", Gpt),
        "fsdp to pipeline": lambda: moves("fsdp:replicas=2", "pipeline:stages=2"),
    }


def cards() -> dict[str, Callable[[], None]]:
    """With one card: a stage on it beside one on the CPU, and groups of one worker over NCCL."""
    if WORLD.size == 2:
        return {
            "pipeline cpu x cuda": lambda: equals_alone("pipeline:devices=cpuxcuda", Gpt),
            "pipeline cuda x cpu": lambda: equals_alone("pipeline:devices=cudaxcpu,schedule=gpipe", Mlp),
        }
    return {
        "fsdp": lambda: equals_alone("fsdp:block=0", Gpt, clip=0.5),
        "tensor": lambda: equals_alone("tensor", Gpt, clip=0.5),
        "pipeline": lambda: equals_alone("pipeline:stages=1", Mlp),
    }


def _tied() -> nn.Module:
    return Gpt(tied=True)


def _untied() -> nn.Module:
    return Encoder(tied=False)


def _marks() -> None:
    def marked() -> nn.Module:
        model = Gpt()
        setattr(model.blocks[1], MARK, True)
        return model

    one = Cut("pipeline:split=marks", marked, RATE)
    one.train(0.0, ROWS, False)
    assert [told.split(" …")[0] for told in one.cut.facts()["stages"]] == ["words", "blocks.1"]
    held = [name for name, value in one.model.named_parameters() if not value.is_meta]
    assert ("places" in held) == (WORLD.rank == 0) and ("gain" in held) == (WORLD.rank == 1)
    one.cut.finish()


def _bad_input() -> None:
    refuses(BadModel, "call loss = run.step(model, loss_fn, x, y)", lambda: _forward("pipeline", Mlp))
    refuses(BadModel, "the weight 'words.weight' is tied", lambda: _trained("pipeline", Encoder))
    refuses(BadModel, "3 layers to cut between", lambda: Cut("pipeline:schedule=interleaved", Whole, RATE))
    refuses(BadModel, "has no dimension, and fsdp cuts along the first", lambda: Cut("fsdp", _scalar, RATE))
    refuses(BadModel, "the script has no function of that name", lambda: Cut("tensor:plan=give_plan", Mlp, RATE))
    refuses(Disagreement, "wrap different models: 0.weight", _different)
    refuses(Disagreement, "were given different batches", _other_batches)
    process_group.join(WORLD)  # what was refused has left


def _forward(strategy: str, kind: Callable[[], nn.Module]) -> None:
    one = Cut(strategy, kind, RATE)
    try:
        one.model(one.data(4, 0)[0])
    finally:
        one.cut.finish()


def _trained(strategy: str, kind: Callable[[], nn.Module]) -> None:
    one = Cut(strategy, kind, RATE)
    try:
        one.train(0.0, ROWS, False)
    finally:
        one.cut.finish()


def _scalar() -> nn.Module:
    model = Mlp()
    model.scale = nn.Parameter(torch.ones(()))
    return model


def _different() -> None:
    model = nn.Sequential(nn.Linear(4 + WORLD.rank, 4))
    partition("fsdp").attach(model, [torch.optim.SGD(model.parameters(), lr=1)])


def _other_batches() -> None:
    one = Cut("tensor", Mlp, RATE)
    try:
        one.model(torch.full((2, models.WIDTH), float(WORLD.rank)))
    finally:
        one.cut.finish()


if __name__ == "__main__":
    main(sys.argv[1:], {2: two, 3: three, 4: four}[WORLD.size]())
