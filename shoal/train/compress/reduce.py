"""The mean over a group of what its members squeezed.

Sixteen-bit values are added as they are. Codes that cannot be added are laid beside each other by a sum in which every
member fills only its own row: an all-gather over nothing but `all_reduce`. It costs a row per member, so it pays while
the number of members is below one over the ratio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shoal.train.compress.api import Compressor, plain
from shoal.train.compress.halves import Halves

if TYPE_CHECKING:
    from shoal.train.group.api import Group

Named = Sequence[tuple[str, Tensor]]


class Gathered:
    """For codes that cannot be added: top-k and one bit."""

    def __init__(self, one: Compressor) -> None:
        self.one = one

    def mean(self, named: Named, group: Group) -> int:
        kept = {name: self.one.errors[name].clone() for name, _ in named if name in self.one.errors}
        codes = [self.one.encode(name, tensor) for name, tensor in named]
        rows = _rows(codes, group)
        try:
            group.all_reduce(rows.view(-1))
        except BaseException:
            for name, _ in named:
                self.one.forget(name)
            self.one.errors.update(kept)
            raise
        count = int((rows[:, -1] != 0).sum())
        self._add_up(named, [len(code) for code in codes], rows, count)
        return sum(len(code) for code in codes)

    def _add_up(self, named: Named, lengths: list[int], rows: Tensor, count: int) -> None:
        flats = [torch.zeros(tensor.numel(), dtype=plain(tensor.dtype), device=tensor.device) for _, tensor in named]
        for row in rows[rows[:, -1] != 0].view(torch.uint8):  # in the order of ranks, so that all add alike
            begin = 0
            for flat, length in zip(flats, lengths, strict=True):
                part = torch.empty_like(flat)
                self.one.decode(row[begin : begin + length].clone(), part)
                flat.add_(part)
                begin += length
        for (_, tensor), flat in zip(named, flats, strict=True):
            tensor.detach().copy_(flat.div_(count).view(tensor.shape))

    def state(self) -> dict[str, Tensor]:
        return self.one.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.one.load(state)


def _rows(codes: Sequence[Tensor], group: Group) -> Tensor:
    """One row per rank, ours filled; the last word of a row says that it is filled. Words of 32 bits: every backend
    adds those."""
    code = torch.cat(list(codes))
    words = torch.zeros(group.size, -(-len(code) // 4) + 1, dtype=torch.int32, device=code.device)
    words[group.rank].view(torch.uint8)[: len(code)] = code
    words[group.rank, -1] = 1
    return words


class Halved:
    """For values of sixteen bits: added as they are, after a division that keeps the sum in range."""

    def __init__(self, one: Halves) -> None:
        self.one = one

    def mean(self, named: Named, group: Group) -> int:
        share = 1 << (group.size - 1).bit_length()  # of two, four …: such a division costs no digits
        given = torch.cat([tensor.detach().reshape(-1).to(plain(tensor.dtype)) for _, tensor in named])
        given.add_(torch.cat([self._error(name, tensor) for name, tensor in named])).div_(share)
        half = self.one.halve(given)
        given.sub_(half).mul_(share).nan_to_num_(0.0, 0.0, 0.0)
        summed = torch.cat([half, half.new_tensor([1 / share])])  # the last one counts who took part
        group.all_reduce(summed)
        count = round(float(summed[-1]) * share)
        mean = summed[:-1].to(given.dtype).mul_(share / count)
        for (name, tensor), error, part in zip(named, cut(given, named), cut(mean, named), strict=True):
            self.one.errors[name] = error.clone()
            tensor.detach().copy_(part.view(tensor.shape))
        return 2 * summed.numel()

    def _error(self, name: str, tensor: Tensor) -> Tensor:
        found = self.one.errors.get(name)
        if found is None or found.numel() != tensor.numel():
            return torch.zeros(tensor.numel(), dtype=plain(tensor.dtype), device=tensor.device)
        return found.to(tensor.device)

    def state(self) -> dict[str, Tensor]:
        return self.one.state()

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.one.load(state)


def cut(flat: Tensor, named: Named) -> list[Tensor]:
    """The parts of a flat tensor that belong to each name, as views."""
    return list(torch.split(flat, [tensor.numel() for _, tensor in named]))
