"""Who holds which tensor of a model that is cut into stages: the others keep its shape and no numbers.

`state_dict()` fetches every tensor from its holder, `load_state_dict()` leaves aside what is not held here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shoal.train.partition.trace import Chain, Gates
from shoal.train.partition.whole import must_be_together

Place = tuple[int, str]  # a module by identity, and the name of a tensor in it


def stage_of(model: nn.Module, gates: Gates, chain: Chain, spans: list[tuple[int, int]]) -> dict[Place, int]:
    """The stage of every parameter and buffer. What no call reaches stays with the first; buffers outside of units are
    on every stage and told by the first."""
    stages: dict[Place, int] = {}
    for place, unit in enumerate(chain.units):
        for module in gates.units[unit.name].modules():
            for name in (*module._parameters, *module._buffers):
                stages.setdefault((id(module), name), _find(spans, place))
    names = {id(one): name for name, one in model.named_parameters()}
    for module in gates.outer:
        for name, parameter in module._parameters.items():
            if parameter is not None:
                stages[id(module), name] = _find(spans, chain.homes.get(names[id(parameter)], 0))
    return stages


def _find(spans: list[tuple[int, int]], place: int) -> int:
    return next(number for number, (first, end) in enumerate(spans) if first <= place < end)


def drop(model: nn.Module, gates: Gates, stages: Mapping[Place, int], mine: Iterable[int]) -> None:
    """Takes the numbers from what belongs to other stages. Ties stay ties."""
    keep, empty = set(mine), dict[int, Tensor]()
    outer = {id(one) for one in gates.outer}
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, one in table.items():
                everywhere = id(module) in outer and table is module._buffers
                if one is None or everywhere or stages.get((id(module), name), 0) in keep:
                    continue
                if id(one) not in empty:
                    empty[id(one)] = _emptied(one)
                table[name] = empty[id(one)]  # type: ignore[assignment]


def move(model: nn.Module, device: torch.device) -> None:
    """What has numbers goes to the device; parameters stay the objects they are."""
    for module in model.modules():
        for one in (*module._parameters.values(), *module._buffers.values()):
            if one is not None and not one.is_meta:
                one.data = one.data.to(device)


def _emptied(value: Tensor) -> Tensor:
    shape = torch.empty_like(value, device="meta")
    return nn.Parameter(shape, requires_grad=value.requires_grad) if isinstance(value, nn.Parameter) else shape


def show_whole(model: nn.Module, stages: Mapping[Place, int], holders: Mapping[int, int]) -> None:
    """`holders`: stage → the rank that tells its tensors."""

    def gather(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        must_be_together()
        for name, one in (*module._parameters.items(), *module._buffers.items()):
            if one is not None and prefix + name in state:
                source = holders[stages.get((id(module), name), 0)]
                state[prefix + name] = _fetched(one, source)

    for module in model.modules():
        module.register_state_dict_post_hook(gather)  # type: ignore[no-untyped-call]
        module.register_load_state_dict_pre_hook(_leave_aside)  # type: ignore[no-untyped-call]


def _fetched(value: Tensor, source: int) -> Tensor:
    mine = dist.get_rank() == source
    told = value.detach().to("cpu", copy=True).contiguous() if mine else torch.empty(value.shape, dtype=value.dtype)
    dist.broadcast(told, source)
    return told


def _leave_aside(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, one in (*module._parameters.items(), *module._buffers.items()):
        given = state.get(prefix + name)
        if one is not None and one.is_meta and isinstance(given, Tensor) and given.shape == one.shape:
            state[prefix + name] = one
