"""How one cut module meets its neighbours: what its input is taken for, how its matrix lies, what its output becomes.

Between a matrix cut by columns and its partner cut by rows, values are DTensors: they keep their whole shape and every
operation on them means what it means in one process, also with a plain tensor beside them, which counts as alike on all
workers (`implicit_replication`). Outside they are plain tensors, and they are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as tree

from shoal.train.partition.plans import COLUMNS, GATHERED, ROWS, VOCABULARY, is_transposed


class Cut(ParallelStyle):
    """One of the named styles. `local` passes the part on as a plain tensor, for neighbours known to be elementwise.
    `sent` is told the bytes this worker sends for a call, those of its backward included."""

    def __init__(self, style: str, local: bool = False, sent: Callable[[int], None] = lambda size: None) -> None:
        super().__init__()
        self.style, self.local, self._sent = style, local, sent

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, self._place, self._take, self._give)  # type: ignore[arg-type]

    def _place(self, name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        by_rows = self.style == ROWS
        weight = (0 if by_rows else 1) if is_transposed(module) else (1 if by_rows else 0)
        put(module, "weight", mesh, Shard(weight))
        if module._parameters.get("bias") is not None:
            put(module, "bias", mesh, Replicate() if by_rows else Shard(0))

    def _take(self, module: nn.Module, inputs: tuple[Any, ...], mesh: DeviceMesh) -> tuple[Any, ...]:
        """Rows want the input cut along its features, everybody else wants all of it."""
        first = inputs[0]
        self._sent(self._travels(first, mesh.size()))
        wanted: Placement = Shard(first.ndim - 1) if self.style == ROWS else Replicate()
        if not isinstance(first, DTensor):
            lies: Placement = wanted if self.local else Replicate()
            first = DTensor.from_local(first, mesh, [lies], run_check=False)
        return (first.redistribute(placements=[wanted]), *inputs[1:])

    def _travels(self, value: Tensor, parts: int) -> int:
        """The gradient of a whole input that floats is summed in backward: an all-reduce."""
        summed = self.style != ROWS and torch.is_grad_enabled() and value.is_floating_point()
        return int(2 * (parts - 1) / parts * value.numel() * value.element_size()) if summed else 0

    def _give(self, module: nn.Module, output: Any, mesh: DeviceMesh) -> Any:
        if self.style != COLUMNS:
            size, parts = output.numel() * output.element_size(), mesh.size()
            self._sent(int((1 if self.style == GATHERED else 2) * (parts - 1) / parts * size))
        if self.style == COLUMNS:
            return output.to_local() if self.local else output
        return plain(output)


def style_of(choice: Any, local: bool, sent: Callable[[int], None]) -> ParallelStyle:
    """The style behind a name; a style of torch is itself."""
    if isinstance(choice, ParallelStyle):
        return choice
    assert choice in (COLUMNS, ROWS, GATHERED, VOCABULARY), choice
    return Cut(choice, local, sent)


def put(module: nn.Module, name: str, mesh: DeviceMesh, placement: Placement) -> None:
    """Makes a parameter of the module a part of itself. Every worker has the same values, so nothing is sent."""
    old = module._parameters[name]
    assert old is not None
    part = distribute_tensor(old.detach(), mesh, [placement], src_data_rank=None)
    setattr(module, name, nn.Parameter(part, requires_grad=old.requires_grad))


class _Leave(torch.autograd.Function):
    """From a replicated DTensor to a plain tensor. Unlike `to_local`, its backward also takes a DTensor: that is what
    comes back when the plain tensor was used together with one, perhaps still to be summed."""

    @staticmethod
    def forward(ctx: Any, value: DTensor) -> Tensor:
        ctx.mesh = value.device_mesh
        return value._local_tensor.detach()  # not a view: FSDP warns of those

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> DTensor:
        if isinstance(grad, DTensor):
            return grad.redistribute(placements=[Replicate()])
        return DTensor.from_local(grad, ctx.mesh, [Replicate()], run_check=False)


def _leave(value: DTensor) -> Tensor:
    return _Leave.apply(value.redistribute(placements=[Replicate()]))  # type: ignore[no-any-return, no-untyped-call]


def plain(value: Any) -> Any:
    """The same structure with whole plain tensors."""
    return tree.tree_map_only(DTensor, _leave, value)


class Kept:
    """Parameters of which every worker has all: the module computes with plain tensors.

    They are DTensors like all others, so that clipping sees one kind; while the module computes, their local values
    stand in its `__dict__`, where an attribute is looked for first.
    """

    def __init__(self, module: nn.Module, names: Mapping[nn.Module, Sequence[str]], takes_plain: bool) -> None:
        self._inside = [one for one in module.modules() if one in names]
        self._names, self._takes_plain = names, takes_plain
        self._shown: list[list[tuple[nn.Module, str]]] = []
        module.register_forward_pre_hook(self._enter, with_kwargs=True)
        module.register_forward_hook(self._leave, always_call=True)

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        shown = []
        for one in self._inside:
            for name in self._names[one]:
                parameter: Any = one._parameters[name]
                together = parameter.device_mesh.ndim == 1  # not sharded over the copies just now
                if together and name not in one.__dict__:
                    one.__dict__[name] = _leave(parameter)
                    shown.append((one, name))
            if isinstance(one, nn.RNNBase):  # keeps a second list of its parameters
                one._flat_weights = [getattr(one, name) for name in one._flat_weights_names]
        self._shown.append(shown)
        return (plain(args), plain(kwargs)) if self._takes_plain else (args, kwargs)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        for one, name in self._shown.pop() if self._shown else ():
            one.__dict__.pop(name, None)


def keep(model: nn.Module, mesh: DeviceMesh, cut: Iterable[str]) -> None:
    """Replicates every parameter that no style has placed. Modules with nothing cut inside take plain tensors, except
    norms, which may stand between two partners and mean the same on a part."""
    kept: dict[nn.Module, list[str]] = {}
    for module in model.modules():
        for own, parameter in list(module._parameters.items()):
            if parameter is not None and not isinstance(parameter, DTensor):
                put(module, own, mesh, Replicate())
                kept.setdefault(module, []).append(own)
    around = {".".join(name.split(".")[:depth]) for name in cut for depth in range(len(name.split(".")) + 1)}
    for name, module in model.named_modules():
        if any(one in kept for one in module.modules()):
            norm = type(module).__name__.endswith("Norm")
            Kept(module, kept, takes_plain=name not in around and not norm)


class _Attention(TorchFunctionMode):
    """Batches and heads do not see each other: attention over parts of them is attention over the parts. DTensor knows
    that of some of torch's ways to compute it only."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        named = {**dict(zip(("query", "key", "value", "attn_mask"), args, strict=False)), **kwargs}
        query = named["query"]
        whole = not isinstance(query, DTensor) or query.placements[0] not in (Replicate(), Shard(0), Shard(1))
        if whole or len(args) > 4:
            return func(*args, **kwargs)
        lies, mesh = query.placements[0], query.device_mesh
        for name in ("key", "value"):
            named[name] = _as(named[name], mesh, lies).to_local()
        mask = named.get("attn_mask")
        if mask is not None:
            cut = isinstance(lies, Shard) and mask.ndim == query.ndim and mask.shape[lies.dim] > 1
            named["attn_mask"] = _as(mask, mesh, lies if cut else Replicate()).to_local()
        made = func(**{**named, "query": query.to_local()})
        return DTensor.from_local(made, mesh, [lies], run_check=False)


def _as(value: Tensor, mesh: DeviceMesh, placement: Placement) -> DTensor:
    if not isinstance(value, DTensor):
        value = DTensor.from_local(value, mesh, [Replicate()], run_check=False)
    return value.redistribute(placements=[placement])


def attend(model: nn.Module, cut: Iterable[str]) -> None:
    """Lets the modules around cut ones attend with parts."""
    for owner in sorted({name.rpartition(".")[0] for name in cut}):
        module, modes = model.get_submodule(owner), list[_Attention]()

        def enter(module: nn.Module, args: Any, modes: list[_Attention] = modes) -> None:
            modes.append(_Attention())
            modes[-1].__enter__()  # type: ignore[no-untyped-call]

        def leave(module: nn.Module, args: Any, output: Any, modes: list[_Attention] = modes) -> None:
            if modes:  # none, when a hook before this one has failed
                modes.pop().__exit__(None, None, None)  # type: ignore[no-untyped-call]

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave, always_call=True)


def whole_gradient(parameter: Tensor) -> None:
    """The gradient lies as its parameter does: what is still to be summed over workers is summed."""
    grad = parameter.grad
    if isinstance(parameter, DTensor) and isinstance(grad, DTensor) and grad.placements != parameter.placements:
        parameter.grad = grad.redistribute(placements=parameter.placements)
