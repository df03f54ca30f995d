"""One collective operation that one worker asks for, and what the others learn of it. Plain data, no arrays.

Everything that the result depends on is in it (shapes, splits, root), so when all have asked, each knows what to
expect from the others and nothing more needs to be said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ALLREDUCE, ALLGATHER, BROADCAST = "allreduce", "allgather", "broadcast"
ALLTOALL, REDUCESCATTER, BARRIER, JOIN = "alltoall", "reducescatter", "barrier", "join"

AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT = "average", "sum", "adasum", "min", "max", "product"

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Ask:
    """`name` is what brings the asks of different workers together. Several arrays are one grouped operation."""

    kind: str
    name: str
    dtypes: tuple[str, ...] = ()
    shapes: tuple[Shape, ...] = ()
    op: str = SUM
    before: float = 1.0  # what is multiplied with on the way in
    after: float = 1.0  # and on the way out
    root: int = 0
    splits: tuple[int, ...] = ()

    def plain(self) -> list[Any]:
        """As JSON can hold it."""
        rest = [self.op, self.before, self.after, self.root, self.splits]
        return [self.kind, self.name, self.dtypes, self.shapes, *rest]

    @classmethod
    def of(cls, plain: Sequence[Any]) -> Ask:
        kind, name, dtypes, shapes, op, before, after, root, splits = plain
        whole = tuple(tuple(shape) for shape in shapes)
        return cls(kind, name, tuple(dtypes), whole, op, before, after, root, tuple(splits))


def differs(asks: Mapping[int, Ask], size: int) -> str | None:
    """Why these asks of one name, by worker, are no common operation among so many; None when they are."""
    (first, one), *others = asks.items()
    for other, two in others:
        for what, mine, theirs in _must_agree(one, two):
            if mine != theirs:
                return (
                    f"worker-{first} asks for {one.kind} {one.name!r} with {what} {mine}, worker-{other} for "
                    f"{two.kind} with {what} {theirs}; the workers must ask for the same operation under one name"
                )
    if one.kind == ALLTOALL:
        return _uneven(asks, size)
    if one.kind == REDUCESCATTER and any(not shape for shape in one.shapes):
        return f"reducescatter {one.name!r} needs tensors with at least one dimension; reshape the scalar"
    return None


def _must_agree(one: Ask, two: Ask) -> list[tuple[str, Any, Any]]:
    facts = [
        ("kind", one.kind, two.kind),
        ("number of tensors", len(one.dtypes), len(two.dtypes)),
        ("types", list(one.dtypes), list(two.dtypes)),
        ("op", one.op, two.op),
        ("scale", (one.before, one.after), (two.before, two.after)),
        ("root rank", one.root, two.root),
    ]
    if one.kind in (ALLGATHER, ALLTOALL):  # their first dimension is each worker's own
        return [*facts, ("shapes after the first dimension", _rests(one), _rests(two))]
    return [*facts, ("shapes", list(one.shapes), list(two.shapes))]


def _rests(ask: Ask) -> list[Shape | None]:
    return [shape[1:] if shape else None for shape in ask.shapes]


def _uneven(asks: Mapping[int, Ask], size: int) -> str | None:
    for worker, ask in asks.items():
        rows = ask.shapes[0][0] if ask.shapes[0] else 0
        if len(ask.splits) != size or sum(ask.splits) != rows or min(ask.splits) < 0:
            return (
                f"worker-{worker} splits {rows} rows of alltoall {ask.name!r} as {list(ask.splits)} among {size} "
                "workers; give one part for each, together all rows"
            )
    return None
