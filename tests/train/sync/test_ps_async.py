"""ps-async, ps-ssp and ps-softsync: what was pushed is what was applied, and who may step is respected."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shoal.train.errors import BadModel, BadOptimizer
from tests.train.sync.central import Worker, batch, linear, loss_of, same, site, together, weights, whole

RATE = 2.0**-4


class Line(nn.Module):
    """x · w: its gradient does not depend on w, so every order of updates gives the same sum."""

    def __init__(self, width: int = 300) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.w).sum()


class Own(torch.optim.SGD):
    """A class of the user's: it cannot run on a server."""


def gradients(rank: int, steps: int, width: int = 300) -> list[Tensor]:
    return [whole(width, seed=100 * rank + step) for step in range(steps)]


def train(worker: Worker, steps: int, kind: type[torch.optim.SGD] = torch.optim.SGD, **options: Any) -> Line:
    model = Line()
    optimizer = kind(model.parameters(), lr=RATE, **options)
    worker.wrap(model, optimizer)
    for gradient in gradients(worker.world.rank, steps):
        optimizer.zero_grad()
        model(gradient).backward()
        optimizer.step()
    return model


def total(workers: int, steps: int) -> Tensor:
    return sum((one for rank in range(workers) for one in gradients(rank, steps)), torch.zeros(300))


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.SGD, Own])
@pytest.mark.parametrize(
    "strategy", ["ps-async", "ps-ssp:staleness=2", "ps-async:push=3,fetch=2", "ps-async:push=2,fetch=3"]
)
def test_the_weights_are_the_sum_of_all_changes(
    strategy: str, kind: type[torch.optim.SGD], far: bool, tmp_path: Path
) -> None:
    """Whoever steps, however seldom they push: each gradient counts once. The rest is flushed at the end."""
    with site(tmp_path, strategy, 3, servers=2, far=far) as here:
        barrier = threading.Barrier(3)

        def act(rank: int) -> Tensor:
            worker = here.worker(rank)
            model = train(worker, 7, kind)
            for way in worker.sync._ways.values():
                way.flush()
            barrier.wait(30)
            for way in worker.sync._ways.values():
                way.portion.pull()
            worker.finish()
            return model.w.detach()

        results = together(3, act)
    for one in results:
        assert torch.equal(one, -RATE * total(3, 7))


def test_a_worker_sees_its_own_writes(tmp_path: Path) -> None:
    with site(tmp_path, "ps-async", 1) as here:
        model = train(here.worker(0), 3)
    assert torch.equal(model.w.detach(), -RATE * total(1, 3))


def test_between_two_reads_the_worker_goes_on_by_itself(tmp_path: Path) -> None:
    """With fetch=3 the second step must start from where the first one led."""
    with site(tmp_path, "ps-async:fetch=3", 1) as here:
        worker, model = here.worker(0), Line()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        worker.wrap(model, optimizer)
        seen = []
        for gradient in gradients(0, 3):
            optimizer.zero_grad()
            model(gradient).backward()
            optimizer.step()
            seen.append(model.w.detach().clone())
        worker.finish()
    expected = [-RATE * total(1, count) for count in (1, 2, 3)]
    assert same(seen, expected)


def test_staleness_is_counted_and_scaled(tmp_path: Path) -> None:
    """Worker 1 pushes twice on the version that it read first: staleness 0, then 1; then 0 reads 4 behind."""
    with site(tmp_path, "ps-async:scale=inverse", 2) as here:
        slow, fast = here.worker(0), here.worker(1)
        models = [Line(), Line()]
        optimizers = [torch.optim.SGD(one.parameters(), lr=RATE) for one in models]
        together(2, lambda rank: (slow, fast)[rank].wrap(models[rank], optimizers[rank]) and None)
        for _ in range(4):
            models[1].w.grad = torch.ones(300)
            optimizers[1].step()
        models[0].w.grad = torch.ones(300)
        optimizers[0].step()
        assert dict(fast.seeing.staleness) == {0: 4}
        assert dict(slow.seeing.staleness) == {4: 1}
        assert torch.equal(models[0].w.detach(), torch.full((300,), -RATE * (4 + 1 / 4)))
        slow.finish()
        fast.finish()


def test_ssp_without_staleness_and_a_shared_rate_is_hardsync(tmp_path: Path) -> None:
    def act(here: Any, rank: int, rate: float) -> list[Tensor]:
        worker, model = here.worker(rank), linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.5)
        worker.wrap(model, optimizer)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, *batch(rank, step)).backward()
            optimizer.step()
        worker.finish()
        return weights(model)

    with site(tmp_path / "sync", "ps-sync", 2) as here:
        one = together(2, lambda rank: act(here, rank, 2.0**-6))
    with site(tmp_path / "ssp", "ps-ssp:staleness=0", 2) as here:
        two = together(2, lambda rank: act(here, rank, 2.0**-7))
    assert same(one[0], one[1]) and same(one[0], two[0]) and same(two[0], two[1])


def test_ssp_holds_the_fastest_back(tmp_path: Path) -> None:
    """With staleness 2 the fast worker finishes 3 steps, and is let go on when the slow one has finished its first."""
    with site(tmp_path, "ps-ssp:staleness=2", 2) as here:
        slow, fast = here.worker(0), here.worker(1)
        models = [Line(), Line()]
        optimizers = [torch.optim.SGD(one.parameters(), lr=RATE) for one in models]
        together(2, lambda rank: (slow, fast)[rank].wrap(models[rank], optimizers[rank]) and None)
        done: list[int] = []

        def run() -> None:
            for step in range(4):
                models[1].w.grad = torch.ones(300)
                optimizers[1].step()
                done.append(step)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        while here.status()["0.0"]["waits"] != {"worker-1": ["worker-0"]}:
            assert thread.is_alive()
        assert done == [0, 1]
        models[0].w.grad = torch.ones(300)
        optimizers[0].step()
        while len(done) < 3:
            assert thread.is_alive()
        slow.finish()
        thread.join(30)
        assert done == [0, 1, 2, 3]
        fast.finish()


def test_softsync_applies_the_mean_of_every_c(tmp_path: Path) -> None:
    with site(tmp_path, "ps-softsync:c=2", 1) as here:
        worker, model = here.worker(0), Line()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        worker.wrap(model, optimizer)
        seen = []
        for value in (1.0, 3.0, 5.0):
            model.w.grad = torch.full((300,), value)
            optimizer.step()
            seen.append(float(model.w.detach()[0]) / -RATE)
        worker.finish()
    assert seen == [0.0, 2.0, 2.0]


@pytest.mark.parametrize("strategy", ["ps-softsync", "ps-async:compensate=0.5", "ps-sync:backup=1"])
def test_what_must_step_on_servers_is_refused_by_name(strategy: str, tmp_path: Path) -> None:
    with site(tmp_path, strategy, 1) as here, pytest.raises(BadOptimizer, match="Own cannot run on a server"):
        train(here.worker(0), 1, Own)


def test_lbfgs_steps_where_the_worker_does(tmp_path: Path) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, *batch(0, 0, count=20))
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    with site(tmp_path, "ps-async", 1) as here:
        worker, model = here.worker(0), linear()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)
        worker.wrap(model, optimizer)
        assert worker.sync.needs_gradient is False
        losses = [float(optimizer.step(closure).detach()) for _ in range(10)]
        worker.finish()
    assert losses[-1] < 0.2 * losses[0]


def test_lbfgs_is_refused_where_gradients_are_averaged(tmp_path: Path) -> None:
    with site(tmp_path, "ps-sync", 1) as here, pytest.raises(BadOptimizer, match="LBFGS evaluates its closure many"):
        model = linear()
        here.worker(0).wrap(model, torch.optim.LBFGS(model.parameters()))


def test_a_parameter_that_is_unfrozen_too_late_is_refused(tmp_path: Path) -> None:
    with site(tmp_path, "ps-async", 1) as here:
        worker, model = here.worker(0), linear()
        model.bias.requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        worker.wrap(model, optimizer)
        model.bias.requires_grad_(True)
        loss_of(model, *batch(0, 0)).backward()
        with pytest.raises(BadModel, match=r"of shape \(3,\) is trained now and was not"):
            optimizer.step()
        worker.finish()


def test_weights_loaded_after_wrap_go_to_the_servers(tmp_path: Path) -> None:
    with site(tmp_path, "ps-async", 1) as here:
        worker, model = here.worker(0), linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        worker.wrap(model, optimizer)
        model.load_state_dict(linear(seed=5).state_dict())
        for one in model.parameters():
            one.grad = torch.zeros_like(one)
        optimizer.step()
        worker.finish()
    assert same(weights(model), weights(linear(seed=5)))


def test_a_joiner_begins_with_what_the_others_have(tmp_path: Path) -> None:
    with site(tmp_path, "ps-ssp:staleness=1", 2) as here:
        first, second = here.worker(0), here.worker(1)
        models = [Line(), Line()]
        optimizers = [torch.optim.SGD(one.parameters(), lr=RATE) for one in models]
        together(2, lambda rank: (first, second)[rank].wrap(models[rank], optimizers[rank]) and None)
        second.finish()
        for _ in range(5):
            models[0].w.grad = torch.ones(300)
            optimizers[0].step()
        again = here.worker(1)
        again.wrap(models[1], optimizers[1])
        assert torch.equal(models[1].w.detach(), torch.full((300,), -RATE * 5))
        assert here.status()["0.0"]["clocks"] == {"worker-0": 5, "worker-1": 5}
        first.finish()
        again.finish()


def test_facts_say_who_scales_what_travels_and_how_even_it_is(tmp_path: Path) -> None:
    with site(tmp_path, "ps-async:scale=inverse,push=4", 1, servers=2) as here:
        worker = here.worker(0)
        train(worker, 1)
        facts = worker.sync.facts()
        worker.finish()
    assert facts["learning_rate"].endswith("the servers shrink a stale change, by 1/staleness")
    assert facts["bytes_per_step"] == 304 * 4 / 4
    assert facts["optimizer"] == "SGD on the servers"
    assert facts["servers"].startswith("2, the fullest with 1.")
    assert facts["transport"] == "shared memory"
    assert facts["buffers"] == "there are none"
    assert facts["numbers"] == "float32 on the way and on the servers"
