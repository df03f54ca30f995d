"""One bit a value: its sign, and for each block of values the mean of their sizes. A thirty-second of the bytes.

m = mean|x| · sign(x). Of all multiples of sign(x) that one is nearest to x, so |x − m| ≤ |x|, block by block.
"""

from __future__ import annotations

from typing import Any

import numpy
import torch
from torch import Tensor
from torch.nn.functional import pad

from shoal.train.compress.api import Compressor, as_bytes

BLOCK = 4096  # values that share one size: small ones beside large ones would drown otherwise; a multiple of 8


class OneBit(Compressor):
    name = "onebit"

    def squeeze(self, flat: Tensor) -> Tensor:
        sizes, signs = _sizes(flat), flat >= 0
        flat.sub_(_spread(sizes, signs))
        return torch.cat([sizes.view(torch.uint8), _packed(signs)])

    def decode(self, code: Any, out: Tensor) -> None:
        found, head = as_bytes(code), 4 * _blocks(out.numel())
        sizes = found[:head].clone().view(torch.float32)  # a copy: a received buffer may lie askew
        out.copy_(_spread(sizes, _unpacked(found[head:], out.numel())))

    def size(self, flat: Tensor) -> int:
        return 4 * _blocks(flat.numel()) + -(-flat.numel() // 8)


def _blocks(numel: int) -> int:
    return -(-numel // BLOCK)


def _sizes(flat: Tensor) -> Tensor:
    """mean |x| of every block; the last one counts only what it has."""
    whole = flat.numel() // BLOCK * BLOCK
    means = flat[:whole].view(-1, BLOCK).abs().mean(dim=1)
    if whole < flat.numel():
        means = torch.cat([means, flat[whole:].abs().mean().view(1)])
    return means.to(torch.float32)


def _spread(sizes: Tensor, signs: Tensor) -> Tensor:
    each = sizes.repeat_interleave(BLOCK)[: signs.numel()]
    return torch.where(signs, each, -each)


def _packed(signs: Tensor) -> Tensor:
    """Eight signs a byte, the first in the lowest bit."""
    if signs.device.type == "cpu":
        return torch.from_numpy(numpy.packbits(signs.numpy(), bitorder="little"))
    rows = pad(signs.to(torch.uint8), (0, -signs.numel() % 8)).view(-1, 8)
    return (rows << _shifts(signs)).sum(dim=1, dtype=torch.uint8)


def _unpacked(code: Tensor, numel: int) -> Tensor:
    if code.device.type == "cpu":
        return torch.from_numpy(numpy.unpackbits(code.numpy(), count=numel, bitorder="little")).view(torch.bool)
    return ((code.unsqueeze(1) >> _shifts(code)) & 1).view(-1)[:numel].to(torch.bool)


def _shifts(like: Tensor) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=like.device)
