"""That workers train the same thing, and start from the same values. Both are asked once, when a model is wrapped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.train.errors import Disagreement
from shoal.train.unit import names, trained

if TYPE_CHECKING:
    from shoal.train.group.api import Group

Rows = list[list[Any]]


def describe(model: nn.Module, optimizers: Sequence[Optimizer]) -> Rows:
    """What must be alike, a row each: the parameters that are stepped, by optimizer, and the buffers."""
    rows: Rows = []
    for number, optimizer in enumerate(optimizers):
        steps = trained(optimizer)
        rows += [
            [f"parameter {name}", f"of optimizer {number}", list(one.shape), str(one.dtype)]
            for name, one in zip(names(model, steps), steps, strict=True)
        ]
    rows += [[f"buffer {name}", "", list(one.shape), str(one.dtype)] for name, one in model.named_buffers()]
    return rows


def difference(mine: Rows, theirs: Rows, who: str, other: str) -> str | None:
    """The first difference in words; None when there is none."""
    for number in range(max(len(mine), len(theirs))):
        here = _said(mine[number]) if number < len(mine) else "nothing more"
        there = _said(theirs[number]) if number < len(theirs) else "nothing more"
        if here != there:
            return f"{who} has {here} where {other} has {there}: every worker must build the same model and optimizers"
    return None


def agree(model: nn.Module, optimizers: Sequence[Optimizer], group: Group) -> None:
    """Collective. Disagreement, on every worker, that names the first difference from the lowest member."""
    rows = describe(model, optimizers)
    marks = group.gather([group.rank, hashlib.sha256(json.dumps(rows).encode()).hexdigest()])
    if all(mark == marks[0][1] for _, mark in marks):
        return
    every = group.gather(rows)
    first = marks[0][0]
    for (rank, _), theirs in zip(marks, every, strict=True):
        found = difference(every[0], theirs, f"worker-{first}", f"worker-{rank}")
        if found:
            raise Disagreement(found)


def start_equal(tensors: Iterable[Tensor], group: Group, source: int | None = None) -> None:
    """Collective. Every worker has the values of the source, or of the lowest member, afterwards."""
    source = group.members()[0] if source is None else source
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor.detach())
    for (dtype, _), some in kinds.items():
        flat = torch.cat([one.reshape(-1) for one in some])
        group.broadcast(flat.view(torch.uint8) if dtype == torch.bool else flat, source)
        for one, part in zip(some, torch.split(flat, [one.numel() for one in some]), strict=True):
            one.copy_(part.view(one.shape))


def everything(model: nn.Module) -> list[Tensor]:
    """Parameters, frozen ones too, and buffers: each once."""
    return list({id(one): one for one in [*model.parameters(), *model.buffers()]}.values())


def _said(row: list[Any]) -> str:
    what, where, shape, dtype = row
    return " ".join(filter(None, [what, where, f"{tuple(shape)}", dtype.removeprefix("torch.")]))
