"""Gossip under a virtual clock: what must hold in every schedule. Doubles with few binary digits, so sums are exact."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.train import compress
from shoal.train.flat import Flat
from shoal.train.gossip.replica import Replica
from shoal.train.simulate.gossip import Simulation, mix, synchronous
from shoal.train.simulate.pace import Seconds, slowed, steady
from shoal.train.topology import COMPLETE, EXPONENTIAL, ONE_PEER, RING, Topology

NAMES = (RING, EXPONENTIAL, ONE_PEER, COMPLETE)
topologies = st.sampled_from(NAMES).map(Topology)


class Walker:
    """Adds a whole number to its values at every step: a gradient that is known beforehand."""

    def __init__(self, rank: int, start: float = 0.0, scale: float = 1.0) -> None:
        self.tensors: Sequence[Tensor] = [torch.full((3,), start, dtype=torch.float64)]
        self.scale, self.changes = scale, list[float]()
        self._random = random.Random(rank)

    def train(self) -> None:
        change = self.scale * self._random.randint(-8, 8)
        self.changes.append(change)
        self.tensors[0].add_(change)

    @property
    def gone(self) -> float:
        return sum(self.changes)


def jittery(low: float, high: float) -> Seconds:
    return lambda worker, step, chance: chance.uniform(low, high)


@given(
    size=st.integers(1, 6),
    topology=topologies,
    mode=st.sampled_from(["pairs", "push"]),
    seed=st.integers(0, 10**6),
    latency=st.floats(0.0, 5.0),
    loses=st.sampled_from([0.0, 0.3]),
)
@settings(deadline=None, max_examples=80)
def test_no_gradient_is_ever_lost(
    size: int, topology: Topology, mode: str, seed: int, latency: float, loses: float
) -> None:
    """Σx = Σx(0) + Σ w·changes, and Σw = n, at every moment, with what is under way, lost and refused messages too."""
    walkers = [Walker(rank, start=float(rank)) for rank in range(size)]
    running = Simulation(
        walkers, topology, mode, seed=seed, compute=jittery(0.5, 1.5), latency=jittery(0.0, latency + 0.01), loses=loses
    )
    start = sum(range(size))
    for until in (1.0, 2.0, 4.0, float("inf")):
        running.run(5, until) if until == 1.0 else running.clock.run(until)
        if mode == "push" or until == float("inf"):  # in pairs, one side has moved while the answer is under way
            total, weight = running.total()
            assert weight == pytest.approx(size, abs=1e-12)
            expected = start + sum(
                change * weight
                for walker, worker in zip(walkers, running.workers, strict=True)
                for change, weight in zip(walker.changes, worker.weights, strict=True)
            )
            assert mode == "push" or expected == start + sum(walker.gone for walker in walkers)
            torch.testing.assert_close(total[0], torch.full((3,), expected, dtype=torch.float64), rtol=0, atol=1e-9)
    assert not running.flying and all(worker.replica.weight > 0 for worker in running.workers)
    assert [worker.steps for worker in running.workers] == [5] * size


@given(size=st.integers(2, 5), topology=topologies, seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=40)
def test_in_pairs_the_sum_is_exact_to_the_bit(size: int, topology: Topology, seed: int) -> None:
    walkers = [Walker(rank) for rank in range(size)]
    running = Simulation(walkers, topology, seed=seed, latency=jittery(0.0, 2.0))
    running.run(6)  # at most 30 exchanges: 30 binary digits behind the point
    (total,), _ = running.total()
    assert total.tolist() == [sum(walker.gone for walker in walkers)] * 3


@given(size=st.integers(2, 6), topology=topologies, seed=st.integers(0, 10**6))
@settings(deadline=None, max_examples=30)
def test_pairs_wait_in_no_circle(size: int, topology: Topology, seed: int) -> None:
    """Whoever is called is not waiting for an answer of its own: no waits in a chain, let alone in a circle."""
    running = Simulation([Walker(rank) for rank in range(size)], topology, seed=seed, latency=jittery(0.5, 3.0))
    waits: list[tuple[int, int]] = []
    answer = running._answer

    def watched(worker, other, sent):  # type: ignore[no-untyped-def]
        waits.append((worker.rank, other.rank))
        assert not other.busy, "a worker that waits was called: the waits could close a circle"
        answer(worker, other, sent)

    running._answer = watched  # type: ignore[method-assign]
    running.run(8)
    assert waits


def test_without_gradients_all_come_to_the_mean() -> None:
    for mode in ("pairs", "push"):
        for name in NAMES:
            still = [Walker(rank, start=16.0 * rank, scale=0.0) for rank in range(5)]
            running = Simulation(still, Topology(name), mode, latency=steady(0.1))
            before = running.distance()
            running.run(60)
            assert running.distance() < 1e-3 * before
            torch.testing.assert_close(
                running.workers[0].replica.copy()[0], torch.full((3,), 32.0).double(), rtol=1e-2, atol=0.1
            )


@pytest.mark.parametrize("name", ["fp16", "bf16", "onebit", "topk"])
def test_squeezed_pairs_conserve_the_sum_and_come_together(name: str) -> None:
    squeeze = compress.make({"compress": name, "ratio": 0.34})
    still = [Walker(rank, start=16.0 * rank, scale=0.0) for rank in range(4)]
    running = Simulation(still, Topology(EXPONENTIAL), squeeze=squeeze, latency=jittery(0.0, 0.5))
    before = running.distance()
    running.run(200)
    (total,), _ = running.total()
    torch.testing.assert_close(total, torch.full((3,), 96.0, dtype=torch.float64))
    assert running.distance() < 0.05 * before


def test_a_slow_worker_holds_nobody_up() -> None:
    for mode in ("pairs", "push"):
        running = Simulation(
            [Walker(rank) for rank in range(4)], Topology(EXPONENTIAL), mode,
            compute=slowed(10.0, [3]), latency=steady(0.1),
        )  # fmt: skip
        running.run(20)
        assert [worker.done_at for worker in running.workers] == pytest.approx([20.0, 20.0, 20.0, 200.0])


def test_a_slow_worker_does_not_gather_the_mass_of_all() -> None:
    running = Simulation(
        [Walker(rank) for rank in range(4)], Topology(EXPONENTIAL), "push",
        compute=slowed(100.0, [3]), latency=steady(0.1),
    )  # fmt: skip
    running.run(3000, until=2000.5)  # between two steps, when everything has arrived
    weights = [worker.replica.weight for worker in running.workers]
    assert min(weights) > 0.2 and sum(weights) + sum(weight for _, weight in running.flying.values()) == pytest.approx(
        4
    )


def test_staleness_counts_the_changes_of_neighbours() -> None:
    running = Simulation([Walker(rank) for rank in range(2)], Topology(RING), compute=steady(1.0), latency=steady(0.1))
    running.run(10)
    assert set(running.workers[0].stale[1:]) == {1} and set(running.workers[1].stale[1:]) == {1}


@given(size=st.integers(3, 6), seed=st.integers(0, 1000), mode=st.sampled_from(["pairs", "push"]))
@settings(deadline=None, max_examples=20)
def test_the_others_go_on_when_one_dies(size: int, seed: int, mode: str) -> None:
    running = Simulation(
        [Walker(rank) for rank in range(size)], Topology(RING), mode, seed=seed, latency=jittery(0.0, 1.0)
    )
    running.run(10, until=4.0)
    running.kill(1)
    running.clock.run()
    assert [worker.steps for worker in running.workers if worker.alive] == [10] * (size - 1)
    assert all(not worker.busy for worker in running.workers if worker.alive)


def test_the_same_seed_gives_the_same_run() -> None:
    runs = []
    for _ in range(2):
        running = Simulation([Walker(rank) for rank in range(4)], Topology(RING), seed=7)
        running.run(10)
        runs.append((running.calls, [worker.replica.x[0].tolist() for worker in running.workers]))
    assert runs[0] == runs[1]


# -- in step -----------------------------------------------------------------------------------------------------------


@given(topology=topologies, size=st.integers(1, 6), steps=st.integers(1, 6))
@settings(deadline=None, max_examples=40)
def test_dpsgd_moves_the_mean_by_the_mean_gradient(topology: Topology, size: int, steps: int) -> None:
    walkers = [Walker(rank, start=float(rank * rank)) for rank in range(size)]
    start = sum(float(walker.tensors[0][0]) for walker in walkers)
    synchronous(walkers, topology, steps)
    total = sum(float(walker.tensors[0][0]) for walker in walkers)
    assert total == pytest.approx(start + sum(walker.gone for walker in walkers), abs=1e-9)


@pytest.mark.parametrize("power", [1, 2, 3, 4])
def test_one_peer_push_sum_is_the_exact_mean_after_as_many_turns_as_digits(power: int) -> None:
    """With the real replicas: every worker gives half to its neighbour of the turn, then takes what came."""
    size = 2**power
    replicas = [Replica(Flat([torch.tensor([float(rank * rank), float(-rank)])])) for rank in range(size)]
    mean = sum(one.x[0].clone() for one in replicas) / size
    for turn in range(power):
        shares = []
        for rank, replica in enumerate(replicas):
            share = replica.layout.empty()
            weight = replica.give(0.5, share)
            shares.append((Topology(ONE_PEER).out(rank, range(size), turn)[0], share, weight))
        for to, share, weight in shares:
            replicas[to].receive(share, weight)
    for replica in replicas:
        assert torch.equal(replica.copy()[0], mean) and replica.weight == 1.0


@pytest.mark.parametrize("name", NAMES)
def test_push_sum_with_doubly_stochastic_shares_is_dpsgd(name: str) -> None:
    """The weights stay one, and the values are those of the mixing matrix."""
    size, topology = 4, Topology(name)
    values = [[torch.tensor([float(4 * rank), 1.0], dtype=torch.float64)] for rank in range(size)]
    replicas = [Replica(Flat(one)) for one in values]
    for turn in range(3):
        weights = topology.column_stochastic(range(size), turn)
        values = mix(values, weights)
        shares = [(to, *_share(replicas[rank], len(near) + 1 - k)) for rank in range(size)
                  for near in [topology.out(rank, range(size), turn)] for k, to in enumerate(near)]  # fmt: skip
        for to, share, weight in shares:
            replicas[to].receive(share, weight)
    for replica, value in zip(replicas, values, strict=True):
        torch.testing.assert_close(replica.copy()[0], value[0])
        assert replica.weight == pytest.approx(1.0)


def _share(replica: Replica, parts: int) -> tuple[list[Tensor], float]:
    share = replica.layout.empty()
    return share, replica.give(1 / parts, share)
