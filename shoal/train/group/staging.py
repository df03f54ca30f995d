"""Any tensor or array as flat numbers in host memory and back: what a transport that moves plain memory works on.

Torch is used only on its own tensors: where it is not installed, arrays of numpy travel the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


def flat(tensor: Any) -> tuple[Any, bool]:
    """The elements in order, one after another in host memory: a view where they lie so already, else a copy (and then
    True: `give_back` has something to do). Copies of a GPU's tensors are pinned: they travel at full speed."""
    if isinstance(tensor, np.ndarray):
        whole = tensor.flags.c_contiguous
        return (tensor if whole else np.ascontiguousarray(tensor)).reshape(-1), not whole
    plain = tensor.detach()
    if plain.device.type == "cpu":
        return (plain.view(-1), False) if plain.is_contiguous() else (plain.contiguous().view(-1), True)
    return _pinned(plain), True


def give_back(staged: Any, tensor: Any) -> None:
    """Writes the elements into the tensor they came from; on a GPU, in the order of its stream."""
    if isinstance(tensor, np.ndarray):
        tensor[...] = staged.reshape(tensor.shape)
    else:
        tensor.detach().copy_(staged.view(tensor.shape), non_blocking=True)


def count(staged: Any) -> int:
    """How many elements, of a tensor or an array."""
    return int(staged.nbytes // staged.dtype.itemsize)


def copy_of(staged: Any) -> Any:
    """The same elements in memory of their own."""
    return staged.copy() if isinstance(staged, np.ndarray) else staged.clone()


def raw(staged: Any) -> memoryview:
    """The bytes of what `flat` returned, writable."""
    if not staged.nbytes:
        return memoryview(bytearray())
    if not isinstance(staged, np.ndarray):
        import torch

        staged = staged.view(torch.uint8).numpy()
    return memoryview(staged.view(np.uint8))


def _pinned(plain: Tensor) -> Tensor:
    import torch

    pinned = torch.empty(plain.numel(), dtype=plain.dtype, pin_memory=plain.is_cuda)
    pinned.copy_(plain.reshape(-1), non_blocking=True)
    if plain.is_cuda:
        torch.cuda.current_stream(plain.device).synchronize()
    return pinned
