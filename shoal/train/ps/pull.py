"""Where parameters land when they come from the servers: in pieces of the flat order, first layers first."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.train.ps.layout import Layout, Part

Pairs = list[tuple[Tensor, int, int]]  # a flat target, where its values begin in the part, how many there are


class Landing:
    """The tensors of a space as targets. They may move (`model.to`, `p.data = …`): the places are found again then."""

    def __init__(self, layout: Layout, tensors: Sequence[Tensor]) -> None:
        self.layout = layout
        self.tensors = list(tensors)
        self._pairs: list[Pairs] = []
        self._detours: dict[int, Tensor] = {}  # flat stand-ins for tensors that are not contiguous
        self._where: list[int] = []

    def pairs(self, part: Part) -> Pairs:
        """The targets of what one server holds."""
        where = [one.data_ptr() for one in self.tensors]
        if where != self._where:
            self._find()
            self._where = where
        return self._pairs[part.server]

    def finish(self) -> None:
        """Everything has landed: what took a detour is put where it belongs."""
        with torch.no_grad():
            for index, flat in self._detours.items():
                self.tensors[index].copy_(flat.view(self.tensors[index].shape))

    def scatter(self, part: Part, values: Tensor) -> None:
        """From a flat tensor over the part."""
        pairs = self.pairs(part)
        with torch.no_grad():
            torch._foreach_copy_([to for to, _, _ in pairs], [values[at : at + count] for _, at, count in pairs])

    def gather(self, part: Part) -> Tensor:
        """The opposite: what the tensors hold now, flat over the part."""
        flat = torch.zeros(part.count, dtype=getattr(torch, self.layout.dtype))
        with torch.no_grad():
            for piece in part.pieces:
                begin = piece.offset - part.offset
                source = self.tensors[piece.param].detach().reshape(-1)[piece.begin : piece.begin + piece.count]
                flat[begin : begin + piece.count].copy_(source)
        return flat

    def _find(self) -> None:
        self._detours = {
            index: torch.empty(one.numel(), dtype=one.dtype, device=one.device)
            for index, one in enumerate(self.tensors)
            if not one.is_contiguous()
        }
        # detach, not data: writing must count as a change, so that a graph that still needs the old values objects.
        flats = [self._detours.get(index, one.detach()).view(-1) for index, one in enumerate(self.tensors)]
        self._pairs = [
            [
                (flats[piece.param][piece.begin : piece.begin + piece.count], piece.offset - part.offset, piece.count)
                for piece in part.pieces
            ]
            for part in self.layout.parts
        ]
