"""Collective operations on tensors, ready to be started or done: what is asked, in which memory, and what is made of
the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoal.adapters.hvd import basics
from shoal.adapters.hvd.arrays import check_adasum, even, kinds
from shoal.adapters.hvd.ask import ADASUM, ALLGATHER, ALLREDUCE, ALLTOALL, BARRIER, BROADCAST, JOIN, REDUCESCATTER, Ask
from shoal.adapters.hvd.engine import Engine
from shoal.adapters.hvd.names import name_of
from shoal.adapters.hvd.sets import ProcessSet
from shoal.adapters.hvd.torch.lent import Lent, like


@dataclass(frozen=True)
class Call:
    """`finish` makes what the script gets from what the engine gives."""

    engine: Engine
    ask: Ask
    arrays: Sequence[Any]
    finish: Callable[[Any], Any]

    def run(self) -> Any:
        """Does it now."""
        return self.finish(self.engine.do(self.ask, self.arrays))


def reduction(
    tensors: Sequence[Tensor], name: str | None, op: str, before: float, after: float, process_set: ProcessSet
) -> Call:
    """In the tensors themselves; the result is the list of them."""
    if op == ADASUM:
        check_adasum(process_set)
    lent = [Lent.of(tensor) for tensor in tensors]
    hosts = [part.host for part in lent]
    scales = {"before": before, "after": after}
    return _call(ALLREDUCE, hosts, name, process_set, lambda _: [part.back() for part in lent], op=op, **scales)


def gathering(tensors: Sequence[Tensor], name: str | None, process_set: ProcessSet) -> Call:
    return _call(ALLGATHER, tensors, name, process_set, _like_each(tensors))


def broadcasting(tensor: Tensor, root: int, name: str | None, process_set: ProcessSet) -> Call:
    """In the tensor itself."""
    lent = Lent.of(tensor)
    return _call(BROADCAST, [lent.host], name, process_set, lambda _: lent.back(), root=root)


def swapping(tensor: Tensor, splits: Tensor | Sequence[int] | None, name: str | None, process_set: ProcessSet) -> Call:
    """The result is what came, and how many rows from each."""
    parts = even(tensor.shape[0], process_set.size() or 1) if splits is None else tuple(int(one) for one in splits)

    def finish(found: Any) -> tuple[Tensor, Tensor]:
        return like(found[0], tensor), torch.tensor(found[1], dtype=torch.int32)

    return _call(ALLTOALL, [tensor], name, process_set, finish, splits=parts)


def scattering(
    tensors: Sequence[Tensor], name: str | None, op: str, before: float, after: float, process_set: ProcessSet
) -> Call:
    if op == ADASUM:
        raise NotImplementedError("reducescatter has no Adasum; use Sum or Average")
    copies, scales = [copy_of(one) for one in tensors], {"before": before, "after": after}
    return _call(REDUCESCATTER, copies, name, process_set, _like_each(tensors), op=op, **scales)


def meeting(process_set: ProcessSet) -> Call:
    return _call(BARRIER, [], None, process_set, lambda _: None)


def joining() -> Call:
    return Call(basics.engine(), Ask(JOIN, JOIN), (), int)


def copy_of(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _call(
    kind: str,
    tensors: Sequence[Tensor],
    name: str | None,
    process_set: ProcessSet,
    finish: Callable[[Any], Any],
    **facts: Any,
) -> Call:
    engine = basics.engine(process_set)
    arrays = [Lent.of(tensor).array for tensor in tensors]
    return Call(
        engine, Ask(kind, name_of(kind, name, process_set.process_set_id), *kinds(arrays), **facts), arrays, finish
    )


def _like_each(tensors: Sequence[Tensor]) -> Callable[[Any], list[Tensor]]:
    return lambda found: [like(one, tensor) for one, tensor in zip(found, tensors, strict=True)]
