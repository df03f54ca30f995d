"""Graphs: weights that add up, graphs that stay connected whoever leaves, pairs that never call in circles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import BadSpec
from shoal.train.topology import COMPLETE, EXPONENTIAL, GIVEN, ONE_PEER, RING, Topology, unreached

NAMES = (RING, EXPONENTIAL, ONE_PEER, COMPLETE)
KITE = "0>1;1>2;2>3;3>0;1>4;4>1"

members = st.sets(st.integers(0, 20), min_size=1, max_size=12).map(sorted)
edges = st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda edge: edge[0] != edge[1]), max_size=30)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    name = draw(st.sampled_from((*NAMES, GIVEN)))
    return Topology(name, frozenset(draw(edges))) if name == GIVEN else Topology(name)


@given(topology=topologies(), some=members, turn=st.integers(0, 9))
@settings(deadline=None, max_examples=200)
def test_what_a_sender_gives_adds_up_to_one(topology: Topology, some: list[int], turn: int) -> None:
    weights = np.array(topology.column_stochastic(some, turn))
    assert np.allclose(weights.sum(axis=0), 1.0) and (weights >= 0).all() and (np.diag(weights) > 0).all()


@given(topology=topologies(), some=members, turn=st.integers(0, 9))
@settings(deadline=None, max_examples=200)
def test_averaging_keeps_the_mean(topology: Topology, some: list[int], turn: int) -> None:
    weights = np.array(topology.doubly_stochastic(some, turn))
    assert np.allclose(weights.sum(axis=0), 1.0) and np.allclose(weights.sum(axis=1), 1.0)
    assert (weights >= -1e-12).all()
    if topology.name in (RING, COMPLETE, GIVEN):
        assert np.allclose(weights, weights.T)


@given(topology=topologies(), some=members)
@settings(deadline=None, max_examples=200)
def test_everyone_is_reached_whoever_is_there(topology: Topology, some: list[int]) -> None:
    turns = range(len(some)) if topology.name == ONE_PEER else (0,)
    edges = {(rank, to) for turn in turns for rank in some for to in topology.out(rank, some, turn)}
    assert all(of in some and to in some and of != to for of, to in edges)
    back = {(to, of) for of, to in edges}
    assert not unreached(some, edges | back)
    if topology.name != GIVEN:
        assert not unreached(some, edges) and not unreached(some, back)


@given(topology=topologies(), some=members)
@settings(deadline=None, max_examples=200)
def test_pairs_never_call_who_calls(topology: Topology, some: list[int]) -> None:
    """Nobody that calls is called: so no circle of waits. And the graph of pairs is connected, for odd numbers too."""
    pairs = topology.pairs(some)
    called = {to for near in pairs.values() for to in near}
    assert not called & set(pairs)
    edges = {(of, to) for of, near in pairs.items() for to in near}
    assert not unreached(some, edges | {(to, of) for of, to in edges})
    if len(some) > 1:
        assert all(pairs.values())


@pytest.mark.parametrize(("size", "rho"), [(4, 0.333), (8, 0.805), (16, 0.949)])
def test_a_ring_mixes_as_fast_as_its_second_eigenvalue(size: int, rho: float) -> None:
    weights = np.array(Topology(RING).doubly_stochastic(range(size)))
    sizes = sorted(abs(np.linalg.eigvalsh(weights)))
    assert sizes[-1] == pytest.approx(1.0) and sizes[-2] == pytest.approx(rho, abs=5e-4)
    assert sizes[-2] == pytest.approx(1 / 3 + 2 / 3 * math.cos(2 * math.pi / size))
    x = np.random.default_rng(0).normal(size=size)
    after = weights @ x
    assert np.linalg.norm(after - x.mean()) <= sizes[-2] * np.linalg.norm(x - x.mean()) + 1e-12


@pytest.mark.parametrize("power", range(6))
def test_one_peer_exponential_is_the_exact_mean_after_as_many_turns_as_digits(power: int) -> None:
    size = 2**power
    product = np.eye(size)
    for turn in range(power):
        product = np.array(Topology(ONE_PEER).column_stochastic(range(size), turn)) @ product
    assert (product == 1 / size).all()  # no rounding: all are sums of powers of two


def test_two_workers_are_each_others_only_neighbour() -> None:
    for name in NAMES:
        assert Topology(name).out(0, (0, 1)) == (1,)
        assert Topology(name).doubly_stochastic((0, 1)) == [[0.5, 0.5], [0.5, 0.5]]
        assert Topology(name).pairs((0, 1)) == {0: (1,)}


def test_alone_there_is_nobody() -> None:
    for name in NAMES:
        assert Topology(name).out(3, (3,)) == () and Topology(name).pairs((3,)) == {}


def test_exponential_hops_in_pairs_are_odd() -> None:
    assert Topology(EXPONENTIAL).pairs(range(8))[0] == (1, 3, 5, 7)


def test_a_given_graph_is_read_and_closes_over_a_lost_rank() -> None:
    graph = Topology.read(GIVEN, KITE, 5)
    assert graph.out(1, range(5)) == (2, 4)
    assert graph.out(1, (0, 1, 3, 4)) == (3, 4)  # 2 is lost: 1 sends to whom 2 sent
    assert graph.out(9, (0, 1, 2, 3, 4, 9)) == (0,) and 9 in graph.out(0, (0, 1, 2, 3, 4, 9))  # a newcomer


@pytest.mark.parametrize(
    ("text", "arrows", "says"),
    [
        ("0>1;2-3", False, "'2-3' is not an edge"),
        ("0>1;1>7", False, "names worker 7"),
        ("0>0;0>1", False, "to itself"),
        ("0>1;2>3", False, "no way leads from worker 0 to worker 2"),
        ("0>1;1>2;2>3", True, "no way leads from worker 1 to worker 0"),
        ("1>0;2>0;3>0", True, "no way leads from worker 0 to worker 1"),
    ],
)
def test_a_graph_that_cannot_be_is_refused(text: str, arrows: bool, says: str) -> None:
    with pytest.raises(BadSpec, match=says):
        Topology.read(GIVEN, text, 4, arrows=arrows)


def test_arrows_do_not_matter_to_pairs() -> None:
    assert Topology.read(GIVEN, "0>1;1>2;2>3", 4).pairs(range(4)) == {0: (1,), 2: (1, 3)}
