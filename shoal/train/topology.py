"""Who is whose neighbour, and with which weight: the graphs of decentralised strategies, as pure data.

A topology speaks of ranks, and only of those that are there: `members` may shrink and grow, and every answer is for the
members given. Circulant graphs (ring, exponential, one-peer, complete) go by a place among the members, so a lost
one closes up by itself; in a given graph the neighbours of a lost rank inherit each other. Every graph stays connected.

Weights: W[i][j] is the part of j's value that i takes. Column stochastic: a sender's shares add up to 1 (push-sum).
Doubly stochastic: also what a receiver takes adds up to 1, so that averaging keeps the mean (D-PSGD).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from shoal.errors import BadSpec

RING, EXPONENTIAL, ONE_PEER, COMPLETE, GIVEN = "ring", "exponential", "one-peer", "complete", "given"
Edge = tuple[int, int]
Weights = list[list[float]]


@dataclass(frozen=True)
class Topology:
    """A graph by name. `turn` counts a rank's exchanges; only one-peer changes with it."""

    name: str
    edges: frozenset[Edge] = frozenset()  # of a given graph

    @classmethod
    def read(cls, name: str, graph: str = "", size: int = 1, *, arrows: bool = False) -> Topology:
        """The topology of the options. BadSpec when a given graph cannot be read, or when news of one worker does not
        reach all others: along the arrows where values are pushed, either way where they are exchanged."""
        if name != GIVEN:
            return cls(name)
        edges = parse(graph, size)
        back = frozenset((to, of) for of, to in edges)
        lonely = unreached(range(size), edges | back) or (arrows and unreached(range(size), edges))
        if lonely:
            raise BadSpec(f"graph={graph!r}: no way leads from worker 0 to worker {lonely[0]}: add an edge to it")
        stuck = arrows and unreached(range(size), back)
        if stuck:
            raise BadSpec(f"graph={graph!r}: no way leads from worker {stuck[0]} to worker 0: add an edge from it")
        return cls(name, edges)

    def out(self, rank: int, members: Sequence[int], turn: int = 0) -> tuple[int, ...]:
        """The ranks that this one sends to, without itself; empty only when it is alone."""
        if self.name == GIVEN:
            return tuple(sorted(to for of, to in remaining(self.edges, tuple(sorted(members))) if of == rank))
        order = sorted(members)
        place, size = order.index(rank), len(order)
        return tuple(dict.fromkeys(order[(place + hop) % size] for hop in self._hops(size, turn)))

    def _hops(self, size: int, turn: int) -> tuple[int, ...]:
        if size == 1:
            return ()
        if self.name == RING:
            return (1, size - 1)  # for two workers the left and the right neighbour are one: `out` names it once
        if self.name == COMPLETE:
            return tuple(range(1, size))
        hops = exponential(size)
        return hops if self.name == EXPONENTIAL else (hops[turn % len(hops)],)

    def column_stochastic(self, members: Sequence[int], turn: int = 0) -> Weights:
        """What push-sum mixes with: everyone keeps one share and sends one to each neighbour. In the order of ranks."""
        order = sorted(members)
        weights = [[0.0] * len(order) for _ in order]
        for sender, rank in enumerate(order):
            targets = self.out(rank, order, turn)
            for receiver in (sender, *map(order.index, targets)):
                weights[receiver][sender] = 1 / (len(targets) + 1)
        return weights

    def doubly_stochastic(self, members: Sequence[int], turn: int = 0) -> Weights:
        """What D-PSGD mixes with. Circulant graphs give it by themselves; a given graph is taken both ways, with
        Metropolis weights 1 / (1 + the larger degree)."""
        if self.name != GIVEN:
            return self.column_stochastic(members, turn)
        order = sorted(members)
        near = {rank: self.both_ways(rank, order) for rank in order}
        weights = [[0.0] * len(order) for _ in order]
        for i, rank in enumerate(order):
            for other in near[rank]:
                weights[i][order.index(other)] = 1 / (1 + max(len(near[rank]), len(near[other])))
            weights[i][i] = 1 - sum(weights[i])
        return weights

    def both_ways(self, rank: int, members: Sequence[int], turn: int = 0) -> tuple[int, ...]:
        """The neighbours of the graph without its arrows."""
        to = set(self.out(rank, members, turn))
        return tuple(sorted(to | {one for one in members if one != rank and rank in self.out(one, members, turn)}))

    def pairs(self, members: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """For pairwise averaging: every active rank with the passive ones it may call. Two colours such that only
        unlike ones meet, so that nobody calls who is called. Where a graph has edges between like colours they are left
        out, and what is missing is made up from neighbours in rank."""
        order = sorted(members)
        colour = self._colours(order)
        near = {rank: [one for one in self._partners(rank, order) if colour[one] != colour[rank]] for rank in order}
        edges = {(of, to) for of in order for to in near[of]}
        if unreached(order, edges | {(to, of) for of, to in edges}):
            edges |= set(pairwise(order))  # wherever this can happen, neighbours in rank are unlike
        return {
            rank: tuple(sorted({other for edge in edges if rank in edge for other in edge} - {rank}))
            for rank in order
            if not colour[rank] and len(order) > 1
        }

    def _partners(self, rank: int, order: Sequence[int]) -> tuple[int, ...]:
        if self.name not in (EXPONENTIAL, ONE_PEER):
            return self.both_ways(rank, order)
        # Hops of 1 and 2^k + 1: odd ones, which lead from one colour to the other.
        place, size = order.index(rank), len(order)
        hops = (1, *(hop + 1 for hop in exponential(size) if hop > 1))
        return tuple(
            dict.fromkeys(order[(place + sign * hop) % size] for hop in hops for sign in (1, -1) if hop < size)
        )

    def _colours(self, order: Sequence[int]) -> dict[int, int]:
        """0 for active, 1 for passive: by place in turn, and in a given graph by the distance from the first."""
        if self.name != GIVEN:
            return {rank: place % 2 for place, rank in enumerate(order)}
        colour = {order[0]: 0}
        queue = deque(order[:1])
        while queue:
            rank = queue.popleft()
            for other in self.both_ways(rank, order):
                if other not in colour:
                    colour[other] = 1 - colour[rank]
                    queue.append(other)
        return colour


@lru_cache(maxsize=64)
def remaining(edges: frozenset[Edge], members: tuple[int, ...]) -> frozenset[Edge]:
    """A given graph among those who are there: the senders to a lost rank send to its receivers instead, a newcomer is
    tied to the lowest, and what has fallen apart nevertheless is tied together in the order of ranks."""
    found = set(edges)
    for lost in sorted({rank for edge in edges for rank in edge} - set(members)):
        bridges = {(of, to) for of, middle in found if middle == lost for begin, to in found if begin == lost}
        found = {edge for edge in found | bridges if lost not in edge and edge[0] != edge[1]}
    known = {rank for edge in found for rank in edge} or {members[0]}
    for joined in set(members) - known:
        found |= {(joined, min(known)), (min(known), joined)}
    if unreached(members, found | {(to, of) for of, to in found}):
        found |= {edge for one, other in pairwise(members) for edge in ((one, other), (other, one))}
    return frozenset(found)


def exponential(size: int) -> tuple[int, ...]:
    """1, 2, 4 … below `size`: as many as it has binary digits."""
    return tuple(1 << k for k in range((size - 1).bit_length()))


def parse(graph: str, size: int) -> frozenset[Edge]:
    """The edges of `0>1;1>2;2>0`."""
    edges = set()
    for part in filter(None, (piece.strip() for piece in graph.split(";"))):
        of, arrow, to = part.partition(">")
        if not (arrow and of.strip().isdigit() and to.strip().isdigit()):
            raise BadSpec(f"graph={graph!r}: {part!r} is not an edge; write for example 0>1;1>2;2>0")
        edge = (int(of), int(to))
        if max(edge) >= size:
            raise BadSpec(f"graph={graph!r}: {part!r} names worker {max(edge)}; there are 0 to {size - 1}")
        if edge[0] == edge[1]:
            raise BadSpec(f"graph={graph!r}: {part!r} leads from a worker to itself; everyone keeps its share anyway")
        edges.add(edge)
    return frozenset(edges)


def unreached(members: Sequence[int], edges: set[Edge] | frozenset[Edge]) -> list[int]:
    """The members to which no way leads from the first one."""
    order = sorted(members)
    seen, queue = {order[0]}, deque(order[:1])
    while queue:
        rank = queue.popleft()
        for of, to in edges:
            if of == rank and to not in seen:
                seen.add(to)
                queue.append(to)
    return [rank for rank in order if rank not in seen]
