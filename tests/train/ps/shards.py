"""Shards over a few parameters, and what torch itself makes of the same gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import Optimizer

from shoal.train.ps.layout import Layout, ParamInfo
from shoal.train.ps.orders import Apply, Contribution
from shoal.train.ps.recipe import Recipe
from shoal.train.ps.shard import STEP, Shard

SIZES = (7, 133, 1000, 13, 2003)
Make = Callable[[list[Tensor]], Optimizer]


def layout_of(params: Sequence[Tensor], optimizer: Optimizer | None = None, servers: int = 1) -> Layout:
    """Small chunks, so that there are many."""
    group = {
        id(one): index
        for index, group in enumerate(optimizer.param_groups if optimizer else ())
        for one in group["params"]
    }
    infos = [
        ParamInfo(f"p{at}", one.numel(), str(one.dtype).replace("torch.", ""), group.get(id(one), 0), tuple(one.shape))
        for at, one in enumerate(params)
    ]
    return Layout.of(infos, servers, chunk_bytes=2048)


def flat(layout: Layout, tensors: Sequence[Tensor]) -> Tensor:
    """In the flat order of the layout."""
    out = torch.zeros(layout.count, dtype=getattr(torch, layout.dtype))
    for piece in layout.pieces:
        source = tensors[piece.param].detach().reshape(-1)[piece.begin : piece.begin + piece.count]
        out[piece.offset : piece.offset + piece.count] = source
    return out


@dataclass
class Fleet:
    """All shards of a layout, pushed to by one worker."""

    layout: Layout
    shards: list[Shard]
    seq: int = 0

    @classmethod
    def of(cls, folder: Path, params: Sequence[Tensor], optimizer: Optimizer, servers: int = 1) -> Fleet:
        layout = layout_of(params, optimizer, servers)
        recipe = Recipe.of(optimizer)
        made = [Shard.create(folder / f"s{part.server}-of-{servers}", part, STEP, recipe) for part in layout.parts]
        fleet = cls(layout, made)
        fleet.fill(params)
        return fleet

    def fill(self, params: Sequence[Tensor]) -> None:
        values = flat(self.layout, params)
        for shard in self.shards:
            shard.fill(values[shard.part.offset : shard.part.offset + shard.part.count])

    def push(self, gradients: Sequence[Tensor]) -> None:
        self.seq += 1
        values = flat(self.layout, gradients)
        for shard in self.shards:
            slot = values[shard.part.offset : shard.part.offset + shard.part.count]
            shard.obey(Apply((Contribution(0, self.seq, clock=self.seq),)), {0: slot})

    def reopen(self) -> None:
        for shard in self.shards:
            shard.close()
        self.shards = [Shard.open(shard.path) for shard in self.shards]

    def params(self) -> list[Tensor]:
        values = torch.cat([shard.params for shard in self.shards])
        out = [torch.zeros(one.numel, dtype=values.dtype) for one in self.layout.params]
        for piece in self.layout.pieces:
            out[piece.param][piece.begin : piece.begin + piece.count] = values[
                piece.offset : piece.offset + piece.count
            ]
        return out


def tensors(seed: int, dtype: torch.dtype = torch.float32, sizes: Sequence[int] = SIZES) -> list[Tensor]:
    chance = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=chance, dtype=dtype) for size in sizes]


def whole(seed: int, count: int) -> Tensor:
    """Whole numbers, so that sums are exact in any order."""
    return torch.randint(-8, 9, (count,), generator=torch.Generator().manual_seed(seed)).float()
