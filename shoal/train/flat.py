"""Tensors laid end to end: one flat tensor for each kind of number and device, halves as singles."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.train.compress.api import plain


class Flat:
    """The layout of some tensors. It keeps no values: `read` copies them out, `write` back in. With `on_host` the flat
    tensors lie in the host's memory, pinned where the tensors are on a GPU."""

    def __init__(self, tensors: Sequence[Tensor], on_host: bool = False) -> None:
        self.tensors = [tensor.detach() for tensor in tensors]
        self._moves = on_host and any(tensor.is_cuda for tensor in self.tensors)
        self._kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for place, tensor in enumerate(self.tensors):
            where = torch.device("cpu") if on_host else tensor.device
            self._kinds.setdefault((plain(tensor.dtype), where), []).append(place)
        # The widest first: laid into one run of bytes, every flat tensor is aligned.
        self._kinds = dict(sorted(self._kinds.items(), key=lambda kind: -kind[0][0].itemsize))

    @property
    def bytes(self) -> int:
        return sum(tensor.numel() * plain(tensor.dtype).itemsize for tensor in self.tensors)

    def sizes(self) -> list[tuple[torch.dtype, int]]:
        """The type and the length of each flat tensor."""
        return [
            (dtype, sum(self.tensors[place].numel() for place in places)) for (dtype, _), places in self._kinds.items()
        ]

    def empty(self) -> list[Tensor]:
        """Flat tensors of this layout, full of zeros."""
        return [
            torch.zeros(size, dtype=dtype, device=device, pin_memory=self._moves)
            for (_, device), (dtype, size) in zip(self._kinds, self.sizes(), strict=True)
        ]

    def read(self, out: list[Tensor] | None = None) -> list[Tensor]:
        """A copy of the values, into `out` where it is given."""
        flats = self.empty() if out is None else out
        self._copy(self.views(flats), self.tensors)
        return flats

    def write(self, flats: Sequence[Tensor]) -> None:
        self._copy(self.tensors, self.views(flats))

    def views(self, flats: Sequence[Tensor]) -> list[Tensor]:
        """The parts of flat tensors that stand for each tensor, in its shape and in the order of `tensors`."""
        found: dict[int, Tensor] = {}
        for flat, places in zip(flats, self._kinds.values(), strict=True):
            parts = torch.split(flat, [self.tensors[place].numel() for place in places])
            shaped = (part.view(self.tensors[place].shape) for place, part in zip(places, parts, strict=True))
            found.update(zip(places, shaped, strict=True))
        return [found[place] for place in range(len(self.tensors))]

    def _copy(self, to: list[Tensor], source: list[Tensor]) -> None:
        if not to:
            return
        if not self._moves:
            torch._foreach_copy_(to, source)
            return
        for one, other in zip(to, source, strict=True):
            one.copy_(other, non_blocking=True)
        torch.cuda.synchronize()  # either side is read by other threads, or by the processor, as soon as this returns
