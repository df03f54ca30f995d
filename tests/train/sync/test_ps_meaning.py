"""Under a parameter server a script keeps its meaning: clipping, accumulation, scaling, closures, schedulers, two
optimizers, two models, parameters that are tied, frozen or unused. Each is compared with one process that has the
batches of both workers; near and far, because gradients travel ahead of the step only in the second case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.train.ps import early
from tests.train.sync.central import Site, batch, linear, loss_of, same, site, together, weights, whole

STEPS, WORKERS = 4, 2
RATE = 2.0**-6


@dataclass
class Bench:
    """A script that runs twice: in one process with all batches, and on two workers with one batch each."""

    ranks: list[int]
    here: Site | None = None
    units: list[Any] = field(default_factory=list)

    def wrap(self, model: nn.Module, *optimizers: Optimizer) -> nn.Module:
        if self.here is None:
            return model
        self.units.append(self.here.worker(self.ranks[0], len(self.units)))
        wrapped: nn.Module = self.units[-1].wrap(model, *optimizers)
        return wrapped

    def backward(self, loss: Callable[[int], Tensor]) -> None:
        """The mean over workers: here of one batch, there of all."""
        for rank in self.ranks:
            (loss(rank) / (WORKERS if self.here is None else 1)).backward()


Script = Callable[[Bench], list[nn.Module]]


def check(script: Script, folder: Path, strategy: str = "ps-sync", far: bool = False) -> None:
    expected = [weights(one) for one in script(Bench(list(range(WORKERS))))]

    def act(rank: int) -> list[list[Tensor]]:
        bench = Bench([rank], here)
        models = script(bench)
        for unit in bench.units:
            unit.finish()
        return [weights(one) for one in models]

    with site(folder, strategy, WORKERS, far=far) as here:
        results = together(WORKERS, act)
    for result in results:
        for mine, other in zip(result, expected, strict=True):
            assert same(mine, other), (mine, other)


@pytest.fixture(params=["near", "far"])
def far(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[bool]:
    monkeypatch.setattr(early, "WORTH", 1)  # also these small gradients are worth sending ahead
    yield request.param == "far"


def sgd(model: nn.Module, **options: Any) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=RATE, **options)


def test_clipping_by_value(far: bool, tmp_path: Path) -> None:
    """The clipped gradient of each worker is what is sent: so in one process each is clipped by itself."""

    def script(bench: Bench) -> list[nn.Module]:
        model = linear()
        optimizer = sgd(model)
        bench.wrap(model, optimizer)
        for step in range(STEPS):
            sums = [torch.zeros_like(one) for one in model.parameters()]
            for rank in bench.ranks:
                optimizer.zero_grad()
                loss_of(model, *batch(rank, step)).backward()
                torch.nn.utils.clip_grad_value_(model.parameters(), 4.0)
                for total, one in zip(sums, model.parameters(), strict=True):
                    assert one.grad is not None
                    total.add_(one.grad)
            if bench.here is None:
                for total, one in zip(sums, model.parameters(), strict=True):
                    one.grad = total / WORKERS
            optimizer.step()
        return [model]

    check(script, tmp_path, far=far)


def test_gradients_changed_behind_autograds_back(far: bool, tmp_path: Path) -> None:
    def script(bench: Bench) -> list[nn.Module]:
        model = linear()
        optimizer = sgd(model)
        bench.wrap(model, optimizer)
        for step in range(2 * STEPS):
            optimizer.zero_grad()
            bench.backward(lambda rank, step=step: loss_of(model, *batch(rank, step)))  # type: ignore[misc]
            if step % 3 == 2:
                for one in model.parameters():
                    assert one.grad is not None
                    one.grad.data.mul_(2.0)
            optimizer.step()
        return [model]

    check(script, tmp_path, far=far)


def test_accumulation_over_several_backwards(far: bool, tmp_path: Path) -> None:
    def script(bench: Bench) -> list[nn.Module]:
        model = linear()
        optimizer = sgd(model)
        bench.wrap(model, optimizer)
        for step in range(3 * 3):  # more would need more digits than there are
            bench.backward(lambda rank, step=step: loss_of(model, *batch(rank, step)))  # type: ignore[misc]
            if step % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
        return [model]

    check(script, tmp_path, far=far)


def test_a_grad_scaler(far: bool, tmp_path: Path) -> None:
    def script(bench: Bench) -> list[nn.Module]:
        model = linear()
        optimizer = sgd(model)
        bench.wrap(model, optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
        for step in range(STEPS):
            optimizer.zero_grad()
            bench.backward(lambda rank, step=step: scaler.scale(loss_of(model, *batch(rank, step))))  # type: ignore[misc]
            if step % 2:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        return [model]

    check(script, tmp_path, far=far)


def test_a_step_that_overflows_moves_nothing_not_even_by_momentum(far: bool, tmp_path: Path) -> None:
    def script(bench: Bench) -> list[nn.Module]:
        model = linear()
        optimizer = sgd(model, momentum=0.5)
        bench.wrap(model, optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
        for step in range(STEPS):
            optimizer.zero_grad()
            much = float("inf") if step == 1 else 1.0
            bench.backward(lambda rank, step=step: scaler.scale(loss_of(model, *batch(rank, step))) * much)  # type: ignore[misc]  # noqa: B023
            scaler.step(optimizer)
            scaler.update()
        return [model]

    check(script, tmp_path, far=far)


@pytest.mark.parametrize("strategy", ["ps-async", "ps-ssp:staleness=2", "ps-softsync:c=1", "ps-async:push=2,fetch=2"])
def test_a_worker_that_skips_moves_nothing_on_the_servers(strategy: str, tmp_path: Path) -> None:
    with site(tmp_path, strategy, 1) as here:
        worker, model = here.worker(0), linear()
        optimizer = sgd(model, momentum=0.5)
        worker.wrap(model, optimizer)
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, *batch(0, step)).backward()
            optimizer.step()
        before = weights(model)
        for _ in range(2):
            for one in model.parameters():
                one.grad = torch.zeros_like(one)
            optimizer.found_inf = torch.ones(1)  # type: ignore[attr-defined]
            optimizer.step()
        assert same(weights(model), before)
        worker.finish()
        assert same(weights(model), before)


def test_a_scheduler(far: bool, tmp_path: Path) -> None:
    def script(bench: Bench) -> list[nn.Module]:
        model = linear()
        optimizer = sgd(model, momentum=0.5)
        bench.wrap(model, optimizer)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for step in range(STEPS):
            optimizer.zero_grad()
            bench.backward(lambda rank, step=step: loss_of(model, *batch(rank, step)))  # type: ignore[misc]
            optimizer.step()
            scheduler.step()
        return [model]

    check(script, tmp_path, far=far)


def test_a_closure(far: bool, tmp_path: Path) -> None:
    def script(bench: Bench) -> list[nn.Module]:
        model = linear()
        optimizer = sgd(model)
        bench.wrap(model, optimizer)
        for step in range(STEPS):

            def closure(step: int = step) -> float:
                optimizer.zero_grad()
                bench.backward(lambda rank: loss_of(model, *batch(rank, step)))
                return 1.0

            assert optimizer.step(closure) == 1.0
        return [model]

    check(script, tmp_path, far=far)


def test_two_optimizers_in_one_wrap(far: bool, tmp_path: Path) -> None:
    def script(bench: Bench) -> list[nn.Module]:
        model = nn.Sequential(linear(5, 4), linear(4, 3, seed=2))
        first = torch.optim.SGD(model[0].parameters(), lr=2.0**-10)
        second = torch.optim.Adam(model[1].parameters(), lr=2.0**-4)
        bench.wrap(model, first, second)
        for step in range(STEPS):
            first.zero_grad()
            second.zero_grad()
            bench.backward(lambda rank, step=step: loss_of(model, *batch(rank, step)))  # type: ignore[misc]
            first.step()
            if step % 2:
                second.step()
        return [model]

    check(script, tmp_path, far=far)


def test_two_models_wrapped_apart(far: bool, tmp_path: Path) -> None:
    def script(bench: Bench) -> list[nn.Module]:
        models = [linear(seed=1), linear(seed=2)]
        optimizers = [sgd(models[0]), sgd(models[1], momentum=0.5)]
        for model, optimizer in zip(models, optimizers, strict=True):
            bench.wrap(model, optimizer)
        for step in range(STEPS):
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                bench.backward(lambda rank, model=model, step=step: loss_of(model, *batch(rank, step)))  # type: ignore[misc]
                optimizer.step()
        return [*models]

    check(script, tmp_path, far=far)


def test_groups_with_rates_of_their_own(far: bool, tmp_path: Path) -> None:
    def script(bench: Bench) -> list[nn.Module]:
        model = linear()
        groups = [{"params": [model.bias], "lr": 2.0**-3}, {"params": [model.weight]}]
        optimizer = torch.optim.SGD(groups, lr=RATE)
        bench.wrap(model, optimizer)
        for step in range(STEPS):
            optimizer.zero_grad()
            bench.backward(lambda rank, step=step: loss_of(model, *batch(rank, step)))  # type: ignore[misc]
            optimizer.step()
        return [model]

    check(script, tmp_path, far=far)


class Odd(nn.Module):
    """A tied weight, a frozen layer, a buffer, and a branch that only some batches take."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        self.first, self.second = linear(5, 5, seed), linear(5, 5, seed + 1)
        self.second.weight = self.first.weight
        self.frozen = linear(5, 3, seed + 2).requires_grad_(False)
        self.side = linear(5, 3, seed + 3)
        self.register_buffer("factor", torch.full((3,), float(seed)))
        self.branch = False

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.second(self.first(x))
        out: Tensor = (self.side(hidden) if self.branch else self.frozen(hidden)) * self.factor
        return out


def test_tied_frozen_and_unused_parameters_and_buffers(far: bool, tmp_path: Path) -> None:
    """The second worker takes the side branch, the first does not: what is missing counts as zero."""

    def script(bench: Bench) -> list[nn.Module]:
        model = Odd(seed=1 if 0 in bench.ranks else 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-20)
        bench.wrap(model, optimizer)

        def loss(rank: int, step: int) -> Tensor:
            model.branch = rank == 1
            return loss_of(model, *batch(rank, step))

        for step in range(STEPS):
            optimizer.zero_grad()
            bench.backward(lambda rank, step=step: loss(rank, step))  # type: ignore[misc]
            optimizer.step()
        assert model.factor.tolist() == [1.0, 1.0, 1.0]
        return [model]

    check(script, tmp_path, far=far)


def test_parameters_that_do_not_lie_in_order(far: bool, tmp_path: Path) -> None:
    def script(bench: Bench) -> list[nn.Module]:
        model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        with torch.no_grad():
            for one in model.parameters():
                one.copy_(whole(*one.shape))
        optimizer = sgd(model)
        bench.wrap(model, optimizer)
        for step in range(STEPS):
            optimizer.zero_grad()
            for rank in bench.ranks:
                x = whole(2, 3, 4, 4, seed=step * 10 + rank)
                (model(x).sum() / (WORKERS if bench.here is None else 1)).backward()
            optimizer.step()
        assert not model.weight.is_contiguous()
        return [model]

    check(script, tmp_path, far=far)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_kinds_of_number(dtype: torch.dtype, tmp_path: Path) -> None:
    def script(bench: Bench) -> list[nn.Module]:
        model = linear().to(dtype)
        optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-10)
        bench.wrap(model, optimizer)
        optimizer.zero_grad()
        bench.backward(lambda rank: loss_of(model, *(one.to(dtype) for one in batch(rank, 0))))
        optimizer.step()
        return [model]

    check(script, tmp_path)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    def act(rank: int) -> None:
        with ExitStack() as stack:
            worker, model = here.worker(rank), linear()
            stack.callback(worker.finish)
            worker.wrap(model, sgd(model))

    with site(tmp_path, "ps-sync", 2) as here:
        together(2, act)
        assert not list((tmp_path / "node-0").glob("grad-*"))
        assert here.status()["0.0"]["members"] == []
