"""Whole tensors of a model that is cut, and back: `state_dict()` and `load_state_dict()` under the user's names, and
the state of optimizers named by parameter, so that any number of workers and any strategy can go on from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from shoal.train.api import State
from shoal.train.errors import BadCheckpoint, BadOptimizer, TrainError

PLAIN = (bool, int, float, str, type(None))


def whole(value: Tensor) -> Tensor:
    """A copy on the CPU, put together from all parts. Collective for a part."""
    with torch.no_grad():
        full = value.detach()
        if isinstance(full, DTensor):
            full = full.full_tensor()
        return full.to("cpu", copy=True)


def like(value: Tensor, model: Tensor) -> Tensor:
    """The part of a whole tensor that belongs where `model` lies. No exchange."""
    value = value.detach().to(model.device)
    if not isinstance(model, DTensor):
        return value
    return distribute_tensor(value, model.device_mesh, model.placements, src_data_rank=None)


def show_whole(model: nn.Module) -> None:
    """From now on `state_dict()` of the model and of everything in it is collective and whole (buffers are those of
    worker-0), and `load_state_dict()` takes whole tensors."""
    for module in model.modules():
        module.register_state_dict_post_hook(_gather_own)  # type: ignore[no-untyped-call]
        module.register_load_state_dict_pre_hook(_cut_own)  # type: ignore[no-untyped-call]


def must_be_together() -> None:
    """TrainError when the workers have parted."""
    if not dist.is_initialized():
        raise TrainError(
            "state_dict() after the run has ended: the parts of the model are on workers that have left; call it before"
        )


def _gather_own(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    must_be_together()
    for name, parameter in module._parameters.items():
        if parameter is not None and prefix + name in state:
            state[prefix + name] = whole(parameter)
    for name, buffer in module._buffers.items():
        if buffer is not None and prefix + name in state:
            shared = buffer.detach().clone()
            dist.broadcast(shared, 0)
            state[prefix + name] = shared.cpu()


def _cut_own(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, parameter in module._parameters.items():
        value: Any = state.get(prefix + name)
        plain = isinstance(value, Tensor) and not isinstance(value, DTensor)
        if parameter is not None and plain and value.shape == parameter.shape:  # torch refuses another, with its name
            state[prefix + name] = like(value, parameter)


# -- optimizers --------------------------------------------------------------------------------------------------------


def names_of(model: nn.Module) -> dict[int, str]:
    """Parameters by identity: the first name of each."""
    return {id(parameter): name for name, parameter in model.named_parameters()}


def point(optimizers: Iterable[Optimizer], known: Mapping[int, str], model: nn.Module) -> None:
    """Points the optimizers' groups from the parameters they know (identity → name) to those the model has now, and
    cuts state they may have. Groups stay the objects they are, because schedulers hold them. A name that the model no
    longer has leaves its group."""
    now = dict(model.named_parameters(remove_duplicate=False))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            kept = []
            for old in group["params"]:
                new = now.get(known[id(old)])
                held = optimizer.state.pop(old, None)
                if new is not None and not new.is_meta:
                    kept.append(new)
                    if held:
                        optimizer.state[new] = {key: _placed(key, one, new, group) for key, one in held.items()}
            group["params"][:] = kept


def export(optimizers: Sequence[Optimizer], known: Mapping[int, str]) -> State:
    """Hyperparameters and state of every optimizer, whole, by the parameters' names. Collective."""
    return {"optimizers": [_exported(optimizer, known) for optimizer in optimizers]}


def restore(optimizers: Sequence[Optimizer], known: Mapping[int, str], state: State) -> None:
    """The opposite; a name this worker does not hold is passed over. BadCheckpoint when it is of other optimizers."""
    saved = state.get("optimizers", [])
    if len(saved) != len(optimizers):
        raise BadCheckpoint(
            f"the checkpoint has {len(saved)} optimizers and the script wraps {len(optimizers)}: wrap the same ones"
        )
    for optimizer, one in zip(optimizers, saved, strict=True):
        _restored(optimizer, known, one)


def merge(parts: Sequence[State], names: Sequence[Sequence[Sequence[str]]]) -> State:
    """One state from those of workers that hold different parameters. `names`: by optimizer and group, all of them."""
    made = []
    for number, every in enumerate(names):
        mine = [part["optimizers"][number] for part in parts]
        groups = [{**group, "params": list(own)} for group, own in zip(mine[0]["groups"], every, strict=True)]
        state = {name: held for one in mine for name, held in one["state"].items()}
        made.append({"name": mine[0]["name"], "groups": groups, "state": state})
    return {"optimizers": made}


def indexed(exported: Mapping[str, Any]) -> dict[str, Any]:
    """The state of one optimizer as `state_dict()` has it, where parameters go by their number."""
    numbers: dict[str, int] = {}
    for group in exported["groups"]:
        for name in group["params"]:
            numbers[name] = len(numbers)
    groups = [{**group, "params": [numbers[name] for name in group["params"]]} for group in exported["groups"]]
    state = {numbers[name]: held for name, held in exported["state"].items()}
    return {"kind": exported["name"], "state": state, "param_groups": groups}


def named(saved: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, Any]:
    """The opposite, with the names of an export made here. BadCheckpoint when the groups hold other numbers of them."""
    mine, theirs = ([len(group["params"]) for group in one] for one in (here["groups"], saved["param_groups"]))
    if mine != theirs:
        raise BadCheckpoint(
            f"the checkpoint's {saved['kind']} has groups of {theirs} parameters and the script's of {mine}: "
            "make the optimizer as it was"
        )
    names = [name for group in here["groups"] for name in group["params"]]
    own = [group["params"] for group in here["groups"]]
    groups = [{**group, "params": one} for group, one in zip(saved["param_groups"], own, strict=True)]
    state = {names[int(number)]: held for number, held in saved["state"].items()}
    return {"name": saved["kind"], "groups": groups, "state": state}


def _exported(optimizer: Optimizer, known: Mapping[int, str]) -> dict[str, Any]:
    groups, state = [], {}
    for group in optimizer.param_groups:
        shown = {key: _shown(value) for key, value in group.items() if key != "params" and _is_plain(value)}
        groups.append({**shown, "params": [known[id(one)] for one in group["params"]]})
        for parameter in group["params"]:
            held = optimizer.state.get(parameter)
            if held:
                state[known[id(parameter)]] = {
                    key: whole(value) if isinstance(value, Tensor) else value
                    for key, value in held.items()
                    if isinstance(value, (Tensor, *PLAIN))
                }
    return {"name": type(optimizer).__name__, "groups": groups, "state": state}


def _restored(optimizer: Optimizer, known: Mapping[int, str], saved: Mapping[str, Any]) -> None:
    name, groups = type(optimizer).__name__, saved["groups"]
    if saved["name"] != name or len(groups) != len(optimizer.param_groups):
        raise BadCheckpoint(
            f"the checkpoint holds the state of {saved['name']} with {len(groups)} groups and the script has {name} "
            f"with {len(optimizer.param_groups)}: make the optimizer as it was, or load only the model"
        )
    for group, old in zip(optimizer.param_groups, groups, strict=True):
        for key, value in old.items():
            if key != "params" and key in group:
                group[key] = tuple(value) if isinstance(group[key], tuple) else value
        for parameter in group["params"]:
            held = saved["state"].get(known[id(parameter)])
            if held is not None:
                optimizer.state[parameter] = {key: _placed(key, one, parameter, group) for key, one in held.items()}


def _placed(key: str, value: Any, parameter: Tensor, group: Mapping[str, Any]) -> Any:
    """A piece of state where its parameter lies; the step counter stays on the CPU unless a fused step reads it."""
    if not isinstance(value, Tensor):
        return value
    if value.shape == parameter.shape and key != "step":
        return value if isinstance(value, DTensor) else like(value, parameter).clone()
    on_device = group.get("fused") or group.get("capturable") or key != "step"
    return value.detach().to(parameter.device if on_device else "cpu", copy=True)


def _is_plain(value: Any) -> bool:
    return isinstance(value, (Tensor, *PLAIN)) or (
        isinstance(value, (list, tuple)) and all(isinstance(one, PLAIN) for one in value)
    )


def _shown(value: Any) -> Any:
    return value.detach().cpu().clone() if isinstance(value, Tensor) else value


def elementwise(optimizers: Iterable[Optimizer], strategy: str) -> None:
    """Refuses optimizers whose step mixes parameters with each other: they would see only their part."""
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise BadOptimizer(
                f"LBFGS cannot run under {strategy}: its step takes dot products over all parameters, and a worker "
                "holds only a part of them; use an elementwise optimizer such as AdamW, or allreduce"
            )
