"""Collective operations on arrays of numpy that return their result: what faces without handles are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.adapters.hvd import basics
from shoal.adapters.hvd.ask import ADASUM, ALLGATHER, ALLREDUCE, ALLTOALL, BARRIER, BROADCAST, JOIN, REDUCESCATTER, Ask
from shoal.adapters.hvd.names import name_of
from shoal.adapters.hvd.sets import ProcessSet, global_process_set


def reduce(
    arrays: Sequence[Any], name: str | None, op: str, before: float, after: float, process_set: ProcessSet
) -> list[Any]:
    """In the arrays themselves."""
    if op == ADASUM:
        check_adasum(process_set)
    found: list[Any] = _do(ALLREDUCE, arrays, name, process_set, op=op, before=before, after=after)
    return found


def gather(arrays: Sequence[Any], name: str | None, process_set: ProcessSet = global_process_set) -> list[Any]:
    found: list[Any] = _do(ALLGATHER, arrays, name, process_set)
    return found


def broadcast(
    arrays: Sequence[Any], root: int, name: str | None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """In the arrays themselves."""
    found: list[Any] = _do(BROADCAST, arrays, name, process_set, root=root)
    return found


def swap(array: Any, splits: Sequence[int], name: str | None, process_set: ProcessSet) -> tuple[Any, list[int]]:
    """What came, and how many rows from each."""
    found: tuple[Any, list[int]] = _do(ALLTOALL, [array], name, process_set, splits=tuple(map(int, splits)))
    return found


def scatter(
    arrays: Sequence[Any], name: str | None, op: str, before: float, after: float, process_set: ProcessSet
) -> list[Any]:
    """The arrays are used up."""
    found: list[Any] = _do(REDUCESCATTER, arrays, name, process_set, op=op, before=before, after=after)
    return found


def meet(process_set: ProcessSet = global_process_set) -> None:
    _do(BARRIER, [], None, process_set)


def join() -> int:
    return int(basics.engine().do(Ask(JOIN, JOIN)))


def even(rows: int, size: int) -> tuple[int, ...]:
    """As many rows to each of so many."""
    if rows % size:
        raise ValueError(f"alltoall without splits: {rows} rows do not divide by {size}; give splits")
    return (rows // size,) * size


def check_adasum(process_set: ProcessSet) -> None:
    if process_set.process_set_id != global_process_set.process_set_id:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")
    size = basics.size()
    if size & (size - 1):
        raise NotImplementedError(f"Adasum needs a number of ranks that is a power of 2, not {size}")


def kinds(arrays: Sequence[Any]) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """Their types and shapes, for an ask."""
    return tuple(np.dtype(one.dtype).name for one in arrays), tuple(tuple(one.shape) for one in arrays)


def _do(kind: str, arrays: Sequence[Any], name: str | None, process_set: ProcessSet, **facts: Any) -> Any:
    engine = basics.engine(process_set)
    ask = Ask(kind, name_of(kind, name, process_set.process_set_id), *kinds(arrays), **facts)
    return engine.do(ask, arrays)
