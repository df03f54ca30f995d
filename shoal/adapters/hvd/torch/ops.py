"""Collective operations on tensors that return a handle at once, and the handles. `direct` has those that wait.

Names ending in `_` work in the tensor itself, which is left alone until the handle is synchronised.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoal.adapters.hvd import basics
from shoal.adapters.hvd.ask import (
    ADASUM,
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    AVERAGE,
    BARRIER,
    BROADCAST,
    JOIN,
    REDUCESCATTER,
    Ask,
)
from shoal.adapters.hvd.engine import Engine
from shoal.adapters.hvd.names import name_of
from shoal.adapters.hvd.ops import chosen
from shoal.adapters.hvd.sets import ProcessSet, global_process_set
from shoal.adapters.hvd.torch.lent import Lent, kinds, like


@dataclass(frozen=True)
class _Started:
    engine: Engine
    future: Future[Any]
    name: str
    finish: Callable[[Any], Any]  # from what the engine gives to what the script gets


_handles: dict[int, _Started] = {}
_numbers = itertools.count(1)
_lock = threading.Lock()


def poll(handle: int) -> bool:
    """Whether `synchronize` would return at once."""
    with _lock:
        started = _handles.get(handle)
    return started is None or started.future.done()


def synchronize(handle: int) -> Any:
    """The operation's result; each handle once. HorovodInternalError when it failed."""
    with _lock:
        started = _handles.pop(handle, None)
    if started is None:
        return None
    return started.finish(started.engine.wait(started.future, started.name))


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    return _reduce(tensor, [tensor], name, chosen(op, average), prescale_factor, postscale_factor, process_set)


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    return allreduce_async_(_copy(tensor), average, name, op, prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    return _reduce(None, tensors, name, chosen(op, average), prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    copies = [_copy(one) for one in tensors]
    return grouped_allreduce_async_(copies, average, name, op, prescale_factor, postscale_factor, process_set)


def sparse_allreduce_async(
    tensor: Tensor, name: str, op: str, process_set: ProcessSet = global_process_set
) -> Callable[[], Tensor]:
    """Of sparse tensors: everybody's entries, those of one index added up. Call what is returned for the result."""
    entries = tensor.coalesce() if not tensor.is_coalesced() else tensor
    indices = allgather_async(entries.indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(entries.values(), f"{name}.values", process_set)

    def finish() -> Tensor:
        every, where = synchronize(values), synchronize(indices).t()
        every = every / process_set.size() if op == AVERAGE else every
        return torch.sparse_coo_tensor(where, every, tensor.shape).coalesce()

    return finish


def allgather_async(tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    """Everybody's rows, one after another; the number of rows may differ."""
    return _start(ALLGATHER, [tensor], name, process_set, lambda found: like(found[0], tensor))


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    def finish(found: Any) -> list[Tensor]:
        return [like(one, tensor) for one, tensor in zip(found, tensors, strict=True)]

    return _start(ALLGATHER, tensors, name, process_set, finish)


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    lent = Lent.of(tensor)
    return _start(BROADCAST, [lent.host], name, process_set, lambda _: lent.back(), root=root_rank)


def broadcast_async(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    return broadcast_async_(_copy(tensor), root_rank, name, process_set)


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Row blocks to everybody, as many rows to each as `splits` says, else as many to all. The result is what came,
    and with `splits` also how many rows from each."""
    size = process_set.size() or 0
    if splits is None:
        if tensor.shape[0] % size:
            raise ValueError(f"alltoall without splits: {tensor.shape[0]} rows do not divide by {size}; give splits")
        parts = (tensor.shape[0] // size,) * size
    else:
        parts = tuple(int(one) for one in splits)

    def finish(found: Any) -> Any:
        whole, received = like(found[0], tensor), torch.tensor(found[1], dtype=torch.int32)
        return whole if splits is None else (whole, received)

    return _start(ALLTOALL, [tensor], name, process_set, finish, splits=parts)


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: str = AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """The reduced rows, to each worker its part of them."""

    def finish(found: Any) -> Tensor:
        return like(found[0], tensor)

    scales = {"before": prescale_factor, "after": postscale_factor}
    return _start(REDUCESCATTER, [_copy(tensor)], name, process_set, finish, op=_fit(op), **scales)


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: str = AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    def finish(found: Any) -> list[Tensor]:
        return [like(one, tensor) for one, tensor in zip(found, tensors, strict=True)]

    scales = {"before": prescale_factor, "after": postscale_factor}
    copies = [_copy(one) for one in tensors]
    return _start(REDUCESCATTER, copies, name, process_set, finish, op=_fit(op), **scales)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when all have come here."""
    synchronize(_start(BARRIER, [], None, process_set, lambda _: None))


def join(device: int = -1) -> int:
    """Says that this worker has no more data: until all have said so it takes part in the others' all-reduces with
    zeros. Returns who said so last."""
    engine = basics.engine()
    return int(engine.wait(engine.ask(Ask(JOIN, JOIN)), JOIN))


def _reduce(
    one: Tensor | None,
    tensors: Sequence[Tensor],
    name: str | None,
    op: str,
    before: float,
    after: float,
    process_set: ProcessSet,
) -> int:
    if op == ADASUM:
        _check_adasum(process_set)
    lent = [Lent.of(tensor) for tensor in tensors]

    def finish(_: Any) -> Any:
        every = [part.back() for part in lent]
        return every if one is None else every[0]

    hosts = [part.host for part in lent]
    return _start(ALLREDUCE, hosts, name, process_set, finish, op=op, before=before, after=after)


def _start(
    kind: str,
    tensors: Sequence[Tensor],
    name: str | None,
    process_set: ProcessSet,
    finish: Callable[[Any], Any],
    **facts: Any,
) -> int:
    engine = basics.engine(process_set)
    arrays = [Lent.of(tensor).array for tensor in tensors]
    ask = Ask(kind, name_of(kind, name), *kinds(arrays), **facts)
    started = _Started(engine, engine.ask(ask, arrays), ask.name, finish)
    with _lock:
        handle = next(_numbers)
        _handles[handle] = started
    return handle


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _fit(op: str) -> str:
    if op == ADASUM:
        raise NotImplementedError("reducescatter has no Adasum; use Sum or Average")
    return op


def _check_adasum(process_set: ProcessSet) -> None:
    if process_set.process_set_id != global_process_set.process_set_id:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")
    size = basics.size()
    if size & (size - 1):
        raise NotImplementedError(f"Adasum needs a number of ranks that is a power of 2, not {size}")
