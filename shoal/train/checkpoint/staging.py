"""The copy in host memory that a checkpoint is written from: the tensors of a file side by side, as they lie in it.

The memory is kept from one save to the next: fresh pages cost more than the copy, and pinned ones forty times as much
(0.8 s for a GB on an H200, during which nothing else runs on the card). So tensors on a GPU are copied there where
there is room in plenty, and the writer fetches them through a small pinned piece: a copy to memory that is not pinned
would hold up the card as a whole. Without that room they go to pinned memory at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.train.checkpoint.tensors import Layout

PLENTY = 4  # a copy on the GPU is made when so many would fit
PIECE = 8 << 20  # bytes that are fetched from it at a time


@dataclass(frozen=True)
class Staged:
    """What a file will hold."""

    layout: Layout
    fetch: Callable[[], Tensor]  # the bytes, on the host

    def pieces(self) -> Iterator[memoryview | bytes]:
        yield self.layout.header
        if self.layout.size:
            yield memoryview(self.fetch().numpy().data)


class Staging:
    """One buffer for each file. A buffer may be staged again when it has been written."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def stage(self, name: str, tensors: Mapping[str, Tensor]) -> Staged:
        """The values as they are now. When this returns, the tensors may change."""
        layout = Layout.of(tensors)
        values = [tensors[one.name].detach() for one in layout.entries]
        devices = {one.device for one in values if one.is_cuda}
        if len(devices) == 1 and _has_plenty(layout.size, *devices):
            return Staged(layout, self._on_device(name, layout, values, *devices))
        data = self._buffer(name, layout.size, pinned=bool(devices))
        _copy(layout, values, data)
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
        return Staged(layout, lambda: data)

    def _on_device(self, name: str, layout: Layout, values: list[Tensor], device: torch.device) -> Callable[[], Tensor]:
        held = [torch.empty(layout.size, dtype=torch.uint8, device=device)]
        _copy(layout, values, held[0])
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record(torch.cuda.current_stream(device))

        def fetch() -> Tensor:
            """In the writer's thread, on a stream of its own: training goes on."""
            data = self._buffer(name, layout.size, pinned=False)
            piece = self._buffer(".piece", PIECE, pinned=True)
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            stream.wait_event(copied)
            with torch.cuda.stream(stream):
                for begin in range(0, layout.size, PIECE):
                    part = held[0][begin : begin + PIECE]
                    piece[: part.numel()].copy_(part, non_blocking=True)
                    stream.synchronize()
                    data[begin : begin + PIECE].copy_(piece[: part.numel()])
            held.clear()
            return data

        return fetch

    def _buffer(self, name: str, size: int, pinned: bool) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < size or (pinned and not buffer.is_pinned()):
            buffer = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
            self._buffers[name] = buffer
        return buffer[:size]


@torch.no_grad()
def _copy(layout: Layout, values: list[Tensor], data: Tensor) -> None:
    for entry, value in zip(layout.entries, values, strict=True):
        entry.view(data).copy_(value, non_blocking=value.is_cuda)


def _has_plenty(size: int, device: torch.device) -> bool:
    return torch.cuda.mem_get_info(device)[0] > PLENTY * size
