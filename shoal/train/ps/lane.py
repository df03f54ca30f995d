"""How values move between the model's device and memory of the host: at once on a CPU, over a stream of their own on a
GPU, with the host's side pinned so that the card reads and writes it without help."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

PORTABLE = 1  # cudaHostRegisterPortable: pinned for every card of the process


class Lane:
    """Copies in one direction at a time. On a GPU they are only begun: `settle` waits for them."""

    def __init__(self) -> None:
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def out(self, host: Sequence[Tensor], device: Sequence[Tensor]) -> None:
        """From the model's tensors, once the work queued on them is done, to the host."""
        self._copy(host, device, device)

    def back(self, device: Sequence[Tensor], host: Sequence[Tensor]) -> None:
        """From the host to the model's tensors."""
        self._copy(device, host, device)

    def settle(self) -> None:
        """Returns when everything begun has arrived."""
        for stream in self._streams.values():
            stream.synchronize()

    def _copy(self, to: Sequence[Tensor], source: Sequence[Tensor], model: Sequence[Tensor]) -> None:
        if not to:
            return
        if not any(one.is_cuda for one in model):
            torch._foreach_copy_(list(to), list(source))
            return
        for device in {one.device for one in model}:
            chosen = [at for at, one in enumerate(model) if one.device == device]
            self._queue(device, [to[at] for at in chosen], [source[at] for at in chosen], [model[at] for at in chosen])

    def _queue(self, device: torch.device, to: list[Tensor], source: list[Tensor], model: list[Tensor]) -> None:
        if device.type != "cuda":
            torch._foreach_copy_(to, source)
            return
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            torch._foreach_copy_(to, source, non_blocking=True)
        for one in model:
            one.record_stream(stream)  # its memory must not be given to others before the copy has read it


def pin(memory: Tensor) -> bool:
    """Pins memory of the host that somebody else allocated, such as a shared segment. False where the driver will not:
    copies are slower then, and right."""
    if memory.numel() == 0 or not torch.cuda.is_available():
        return False
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    return int(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, PORTABLE)) == 0


def unpin(memory: Tensor) -> None:
    """The opposite, before the memory goes away."""
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())  # type: ignore[no-untyped-call]
