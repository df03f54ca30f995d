"""Parameter servers under a virtual clock: the lattice of equal strategies, what stragglers and faults do, seeds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from shoal.errors import BadSpec
from shoal.train.errors import BadOptimizer
from shoal.train.simulate.pace import Seconds, erratic, slowed, steady, wavering
from shoal.train.simulate.server import Fault, Make, Simulation, Trace, gradient_of, simulate

COUNT = 37
START = torch.randint(-50, 50, (COUNT,), generator=torch.Generator().manual_seed(3)).float()


def fixed(params: Tensor, worker: int, step: int) -> Tensor:
    """Whole numbers that depend on who and when alone: sums of them are exact in any order."""
    chance = torch.Generator().manual_seed(1000 * worker + step)
    return torch.randint(-8, 9, (COUNT,), generator=chance).float()


def pulling(params: Tensor, worker: int, step: int) -> Tensor:
    """Towards zero, with noise: depends on the parameters, so every version matters."""
    return params * 0.5 + fixed(params, worker, step) * 0.25


def sgd(lr: float = 0.125, momentum: float = 0.0) -> Make:
    return lambda tensors: torch.optim.SGD(tensors, lr=lr, momentum=momentum)


def run(
    text: str, workers: int = 4, pushes: int = 60, optimizer: Make | None = None, seconds: Seconds | None = None,
    **more: Any,
) -> Trace:  # fmt: skip
    return simulate(text, workers=workers, start=START, gradient=pulling, pushes=pushes, optimizer=optimizer or sgd(),
                    seconds=seconds, **more)  # fmt: skip


PACES = [steady(), wavering(), erratic(), slowed(5, [1], wavering())]


# The lattice.


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("optimizer", [sgd(momentum=0.9), torch.optim.Adam])
def test_softsync_of_n_workers_is_downpour_is_endless_ssp(pace: Seconds, optimizer: Make) -> None:
    ends = [
        run(text, optimizer=optimizer, seconds=pace).params
        for text in ("ps-async", "ps-softsync:n=4", "ps-softsync:c=1", "ps-ssp:staleness=1000000")
    ]
    assert all(torch.equal(ends[0], one) for one in ends[1:])


@pytest.mark.parametrize("pace", PACES)
def test_ssp_zero_with_the_rate_divided_is_hardsync(pace: Seconds) -> None:
    hard = run("ps-sync", optimizer=sgd(0.125), seconds=pace)
    stale = run("ps-ssp:staleness=0", optimizer=sgd(0.125 / 4), seconds=pace)
    assert torch.equal(hard.params, stale.params) and hard.idle == stale.idle and hard.version == 15


def test_hardsync_is_one_process_with_the_batches_of_all() -> None:
    trace = run("ps-sync", workers=3, pushes=30, optimizer=sgd(momentum=0.9))
    params = START.clone().requires_grad_()
    optimizer = torch.optim.SGD([params], lr=0.125, momentum=0.9)
    for step in range(10):
        now = params.detach()
        params.grad = (pulling(now, 0, step) + pulling(now, 1, step) + pulling(now, 2, step)) / 3
        optimizer.step()
    assert torch.equal(trace.params, params.detach())


@pytest.mark.parametrize("scale", ["inverse", "poly,a=2", "hinge,a=3,b=1"])
def test_scaling_by_staleness_changes_nothing_while_it_is_at_most_one(scale: str) -> None:
    plain, scaled = (run(f"ps-async:scale={name}", workers=2, seconds=steady()) for name in ("none", scale))
    assert set(plain.staleness) == {0, 1} and torch.equal(plain.params, scaled.params)
    stale = run(f"ps-async:scale={scale}", workers=4, seconds=steady())
    assert not torch.equal(stale.params, run("ps-async", workers=4, seconds=steady()).params)


def test_softsync_with_all_workers_in_turn_is_not_hardsync() -> None:
    assert run("ps-softsync:n=1", seconds=wavering()).mean_staleness > 0


# Sums that must come out.


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), workers=st.integers(1, 6), duplicates=st.sampled_from([0.0, 0.5]),
       text=st.sampled_from(["ps-async", "ps-ssp:staleness=2", "ps-ssp:staleness=0"]),
       restarts=st.lists(st.floats(0.1, 10), max_size=3))  # fmt: skip
def test_every_push_counts_exactly_once_through_retries_and_restarts(
    seed: int, workers: int, duplicates: float, text: str, restarts: list[float]
) -> None:
    trace = simulate(
        text, workers=workers, start=START, gradient=fixed, pushes=40, optimizer=sgd(1.0), seed=seed,
        seconds=erratic(), duplicates=duplicates, faults=[Fault(at, "restart") for at in restarts],
    )  # fmt: skip
    counted = [(one.worker, one.seq) for update in trace.updates for one in update.contributions]
    assert len(counted) == len(set(counted))
    expected = START - sum(fixed(START, worker, seq - 1) for worker, seq in counted)
    assert torch.equal(trace.params, expected)
    if text != "ps-ssp:staleness=0":
        assert sorted(counted) == sorted((one.worker, one.step + 1) for one in trace.pushes)


@pytest.mark.parametrize("scale", ["inverse", "poly,a=1", "hinge,a=2,b=2"])
def test_the_end_is_the_start_less_every_scaled_change(scale: str) -> None:
    trace = simulate(f"ps-async:scale={scale}", workers=6, start=START.double(), gradient=fixed, pushes=200,
                     optimizer=sgd(0.5), seconds=erratic())  # fmt: skip
    scaled = [(update.scale, one) for update in trace.updates for one in update.contributions]
    assert {1.0} < {scale for scale, _ in scaled}
    expected = START.double() - sum(
        0.5 * scale * fixed(START, one.worker, one.seq - 1).double() for scale, one in scaled
    )
    assert torch.allclose(trace.params, expected, rtol=1e-12, atol=1e-9)


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), c=st.integers(2, 4), restarts=st.lists(st.floats(0.1, 6), min_size=1, max_size=3))
def test_what_is_held_survives_a_restart(seed: int, c: int, restarts: list[float]) -> None:
    whole, cut = (
        simulate(f"ps-softsync:c={c},scale=inverse", workers=3, start=START, gradient=pulling, pushes=40, seed=seed,
                 optimizer=sgd(0.5), seconds=erratic(), faults=[Fault(at, "restart") for at in faults])
        for faults in ([], restarts)
    )  # fmt: skip
    assert torch.equal(whole.params, cut.params) and whole.version == cut.version


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), workers=st.integers(2, 6), s=st.integers(0, 3))
def test_workers_come_and_go_and_nobody_is_stuck(seed: int, workers: int, s: int) -> None:
    faults = [
        Fault(2.0, "die", 0),
        Fault(3.0, "restart"),
        Fault(4.0, "join", 7),
        Fault(5.0, "die", 1),
        Fault(6.0, "join", 0),
    ]

    def watch(now: Simulation) -> None:
        assert now.computing or not now.workers
        assert now.rule.clocks == now.shard.resume().clocks or now.rule.waits()

    trace = run(f"ps-ssp:staleness={s}", workers, 80, sgd(0.01), erratic(), seed=seed, faults=faults, watch=watch)
    assert len(trace.pushes) == 80 and trace.steps[7] > 0


# What the papers see.


@settings(max_examples=10)
@given(seed=st.integers(0, 100), workers=st.integers(1, 12), n=st.integers(1, 12))
def test_softsync_conserves_staleness_under_the_clock(seed: int, workers: int, n: int) -> None:
    def watch(now: Simulation) -> None:
        gathered = sum(one.tau for one in now.trace.pushes)
        inflight = sum(now.shard.version - one.base for one in now.workers.values())
        assert gathered + inflight == (workers - 1) * now.shard.version

    run(f"ps-softsync:n={n}", workers, 60, sgd(0.001), erratic(), seed=seed, watch=watch)


def test_mean_staleness_is_about_n_and_rarely_twice_that() -> None:
    for n in (1, 15, 30):
        trace = run(f"ps-softsync:n={n}", 30, 3000, sgd(0.001), wavering(spread=0.1))
        assert trace.mean_staleness == pytest.approx(29 * n / 30, rel=0.15)
        assert sum(count for tau, count in trace.staleness.items() if tau > 2 * n + 1) < 0.01 * 3000


def test_a_straggler_holds_up_hardsync_and_not_downpour() -> None:
    pace = slowed(5, [0])
    assert run("ps-sync", seconds=pace).seconds == pytest.approx(5 * 15)
    assert run("ps-async", seconds=pace).seconds < 20
    assert run("ps-async", seconds=pace).idle_share == 0
    assert run("ps-sync:backup=1", pushes=45, seconds=pace).idle_share < 0.05


def test_idle_time_shrinks_with_the_bound() -> None:
    idle = [run(f"ps-ssp:staleness={s}", 8, 400, sgd(0.001), erratic()).idle_share for s in (0, 1, 2, 4, 8)]
    assert idle == sorted(idle, reverse=True) and idle[0] > 0.4 and idle[-1] < 0.15


def test_a_fixed_rate_fails_at_high_staleness_and_a_scaled_one_does_not() -> None:
    """The headline of the staleness-aware paper, on a bowl: a rate that is stable up to a delay of about 15."""

    def end(text: str) -> float:
        trace = simulate(text, workers=30, start=START, gradient=lambda params, worker, step: params, pushes=3000,
                         optimizer=sgd(0.1), seconds=wavering(spread=0.1))  # fmt: skip
        return float(trace.params.norm() / START.norm())

    assert end("ps-softsync:n=1") < 0.01 and end("ps-softsync:n=4") < 0.01
    assert end("ps-softsync:n=30") > 10
    assert end("ps-softsync:n=30,scale=inverse") < 0.01


def test_the_same_seed_is_the_same_run() -> None:
    one, two, other = (run("ps-async", seconds=erratic(), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.params, two.params) and one.pushes == two.pushes
    assert one.pushes != other.pushes


def test_a_model_can_be_trained_so() -> None:
    torch.manual_seed(0)
    inputs, model = torch.randn(64, 3), nn.Linear(3, 1)
    target = inputs @ torch.tensor([[1.0], [2.0], [-1.0]]) + 0.5

    def loss(model: nn.Module, worker: int, step: int) -> Tensor:
        rows = slice(16 * (worker % 4), 16 * (worker % 4) + 16)
        return nn.functional.mse_loss(model(inputs[rows]), target[rows])

    start, gradient = gradient_of(model, loss)
    trace = simulate("ps-ssp:staleness=2", workers=4, start=start, gradient=gradient, pushes=400, optimizer=sgd(0.05))
    assert torch.allclose(trace.params, torch.tensor([1.0, 2.0, -1.0, 0.5]), atol=0.02)


@pytest.mark.parametrize("text", ["easgd", "allreduce", "ps-async:push=4", "ps-sync:compress=topk"])
def test_what_is_not_simulated_here_is_refused(text: str) -> None:
    with pytest.raises(BadSpec, match="cannot be simulated here"):
        run(text)


def test_an_optimizer_that_cannot_leave_the_worker_is_refused() -> None:
    with pytest.raises(BadOptimizer, match="cannot run on a server"):
        run("ps-async", optimizer=torch.optim.LBFGS)
