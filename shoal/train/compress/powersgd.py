"""A matrix as the product of two thin ones (Vogels, Karimireddy, Jaggi, NeurIPS 2019, arXiv 1905.13727).

Of p = g + e one step of power iteration keeps rank r: P = mean(p·Q), made orthonormal; Q = mean(pᵀ·P); m = P·Qᵀ. Both
products are linear in p, so two all-reduces of thin matrices give every member the same m, and a matrix of rank ≤ r
comes through whole. The error is each member's own, e = p − P·(pᵀP)ᵀ (the paper's, not p − m, which would let the
members' differences pile up). Vectors, and matrices too small to gain, travel as they are.

Errors and Q are kept by the tensor's name, not by its bucket: buckets that are cut anew cost nothing (pytorch#51427).
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shoal.train.compress.api import plain

if TYPE_CHECKING:
    from shoal.train.group.api import Group

Named = Sequence[tuple[str, Tensor]]
ERROR, THIN = "error.", "thin."  # how the state names them


class PowerSGD:
    """A Reducer; it has no code that a single sender could send."""

    name = "powersgd"

    def __init__(self, rank: int = 2) -> None:
        self.rank = rank
        self.errors: dict[str, Tensor] = {}
        self.thin: dict[str, Tensor] = {}  # Q of the last call: where the next power iteration begins

    def mean(self, named: Named, group: Group) -> int:
        wide = [(name, tensor) for name, tensor in named if self.pays(tensor)]
        rest = [tensor for _, tensor in named if not self.pays(tensor)]
        sent = _mean(rest, group)
        if wide:
            sent += self._mean_of_matrices(wide, group)
        return sent

    def _mean_of_matrices(self, wide: Named, group: Group) -> int:
        given = [self._given(name, tensor) for name, tensor in wide]
        left = [one @ self._thin(name, one) for (name, _), one in zip(wide, given, strict=True)]
        sent = _mean(left, group)
        left = [torch.linalg.qr(one).Q for one in left]
        right = [one.t() @ base for one, base in zip(given, left, strict=True)]
        own = [one.clone() for one in right]
        sent += _mean(right, group)
        for (name, tensor), one, base, thin, mine in zip(wide, given, left, right, own, strict=True):
            self.errors[name] = one.addmm_(base, mine.t(), alpha=-1).nan_to_num_(0.0, 0.0, 0.0)
            self.thin[name] = thin
            tensor.detach().copy_((base @ thin.t()).view(tensor.shape))
        return sent

    def pays(self, tensor: Tensor) -> bool:
        """Whether two thin matrices are smaller than the whole one."""
        if tensor.dim() < 2:
            return False
        rows, columns = tensor.shape[0], tensor.numel() // max(1, tensor.shape[0])
        return (rows + columns) * min(self.rank, rows, columns) < rows * columns

    def _given(self, name: str, tensor: Tensor) -> Tensor:
        given = tensor.detach().reshape(tensor.shape[0], -1).to(plain(tensor.dtype), copy=True)
        error = self.errors.get(name)
        return given if error is None or error.shape != given.shape else given.add_(error.to(given.device))

    def _thin(self, name: str, given: Tensor) -> Tensor:
        """Q to begin with: the last one, or the same draw on every member. A column that has died is drawn again: from
        zero no iteration would ever lead out."""
        columns, rank = given.shape[1], min(self.rank, *given.shape)
        drawn = _draw(name, columns, rank).to(given)
        thin = self.thin.get(name)
        if thin is None or thin.shape != drawn.shape:
            return drawn
        thin = thin.to(given)
        sizes = thin.norm(dim=0)
        alive = torch.isfinite(sizes) & (sizes > 0)
        return torch.where(alive, thin, drawn)

    def state(self) -> dict[str, Tensor]:
        errors = {ERROR + name: error.clone() for name, error in self.errors.items()}
        return {**errors, **{THIN + name: thin.clone() for name, thin in self.thin.items()}}

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.errors = {key[len(ERROR) :]: one.clone() for key, one in state.items() if key.startswith(ERROR)}
        self.thin = {key[len(THIN) :]: one.clone() for key, one in state.items() if key.startswith(THIN)}


def _draw(name: str, columns: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(columns, rank, generator=generator)


def _mean(tensors: Sequence[Tensor], group: Group) -> int:
    """In place, in as few all-reduces as there are types. Returns the bytes."""
    sent = 0
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        of_type = [tensor.detach() for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in of_type])
        group.all_reduce(flat, "mean")
        for tensor, part in zip(of_type, torch.split(flat, [one.numel() for one in of_type]), strict=True):
            tensor.copy_(part.view(tensor.shape))
        sent += flat.numel() * flat.element_size()
    return sent
