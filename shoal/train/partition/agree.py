"""What workers must agree on before a model is cut: its parameters, their values, the dice, and the batch.

Everything else about a cut model follows from these; where they differ silently, training goes wrong without an error.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shoal.train.checkpoint import tree
from shoal.train.errors import Disagreement

Group = dist.ProcessGroup


def gather(value: Any, group: Group | None = None) -> list[Any]:
    """Plain data of every member of the group, in its order. JSON, never pickle. Collective."""
    data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size(group))]
    dist.all_gather(sizes, torch.tensor([data.numel()]), group=group)
    room = max(int(size) for size in sizes)
    mine = torch.zeros(room, dtype=torch.uint8)
    mine[: data.numel()] = data
    rows = [torch.empty(room, dtype=torch.uint8) for _ in sizes]
    dist.all_gather(rows, mine, group=group)
    return [json.loads(bytes(row[: int(size)].tolist())) for row, size in zip(rows, sizes, strict=True)]


def share(value: Any, source: int, group: Group | None = None) -> Any:
    """The source's value (plain data and tensors) on every member, tensors on the CPU. Collective in the group."""
    mine: dict[str, Tensor] = {}
    told: list[Any] = [None, []]
    if dist.get_rank() == source:
        told[0] = tree.pack(value, "", mine)
        told[1] = [[name, list(one.shape), str(one.dtype).removeprefix("torch.")] for name, one in mine.items()]
    packed, listed = _told_by(source, told, group)
    held = {}
    for name, shape, dtype in listed:
        fresh = torch.empty(shape, dtype=getattr(torch, dtype))
        held[name] = mine[name].detach().cpu().contiguous() if name in mine else fresh
        dist.broadcast(held[name], source, group=group)
    return tree.unpack(packed, held)


def _told_by(source: int, value: Any, group: Group | None) -> Any:
    data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    size = torch.tensor([data.numel()])
    dist.broadcast(size, source, group=group)
    room = data if dist.get_rank() == source else torch.empty(int(size), dtype=torch.uint8)
    dist.broadcast(room, source, group=group)
    return json.loads(bytes(room.tolist()))


def same_model(model: nn.Module) -> None:
    """Disagreement that names the first parameter or buffer that is not alike on all workers. Collective."""
    mine = [
        [name, list(one.shape), str(one.dtype).removeprefix("torch."), one.requires_grad]
        for name, one in _tensors(model)
    ]
    told = hashlib.sha256(json.dumps(mine).encode()).hexdigest()
    if len(set(gather(told))) == 1:
        return
    every = gather(mine)
    for rank, other in enumerate(every):
        if other != every[0]:
            raise Disagreement(
                f"worker-0 and worker-{rank} wrap different models: {_difference(every[0], other)}; "
                "build the same model on every worker"
            )


def same_values(model: nn.Module) -> None:
    """Parameters and buffers of worker-0 on every worker. Collective."""
    with torch.no_grad():
        for _, one in _tensors(model):
            if one.numel():
                flat = one.data.contiguous()
                dist.broadcast(flat, 0)
                one.data.copy_(flat)


def same_chance(ranks: Sequence[int], group: Group, card: torch.device | None = None) -> None:
    """The dice of the first of the ranks on all of them, also those of a card that all have: who holds parts of one
    model must drop the same units and shuffle alike. Collective in the group."""
    state = torch.get_rng_state()
    dist.broadcast(state, ranks[0], group=group)
    torch.set_rng_state(state)
    if card is not None:
        state = torch.cuda.get_rng_state(card)
        dist.broadcast(state, ranks[0], group=group)
        torch.cuda.set_rng_state(state, card)
    version, numbers, gauss = gather(random.getstate(), group)[0]
    random.setstate((version, tuple(numbers), gauss))


def same_batch(values: Iterable[Any], ranks: Sequence[int], group: Group) -> None:
    """Disagreement when workers that hold parts of one model were given different data. Collective in the group."""
    told = gather([_shown(value) for value in values], group)
    for rank, other in zip(ranks, told, strict=True):
        if other != told[0]:
            raise Disagreement(
                f"worker-{ranks[0]} and worker-{rank} hold parts of one model and were given different batches "
                f"({told[0]} and {other}): read the data through run.shard(loader), which gives both the same"
            )


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _difference(first: list[list[Any]], other: list[list[Any]]) -> str:
    for mine, theirs in zip(first, other, strict=False):
        if mine != theirs:
            return f"{_told(mine)} against {_told(theirs)}"
    more, longer = (first, "first") if len(first) > len(other) else (other, "second")
    return f"only the {longer} has {_told(more[min(len(first), len(other))])}"


def _told(one: list[Any]) -> str:
    name, shape, dtype, trained = one
    return f"{name} {dtype}{shape}{'' if trained else ' frozen'}"


def _shown(value: Any) -> Any:
    if isinstance(value, Tensor):
        total = float(value.detach().double().sum()) if value.numel() and not value.is_complex() else 0.0
        return f"{list(value.shape)} sum {total:.6g}"
    if isinstance(value, (list, tuple)):
        return [_shown(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _shown(one) for key, one in value.items()}
    return str(value)[:80]
