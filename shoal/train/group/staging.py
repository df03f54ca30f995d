"""Any tensor as flat numbers in host memory and back: what a transport that moves plain memory works on."""

from __future__ import annotations

import torch
from torch import Tensor


def flat(tensor: Tensor) -> tuple[Tensor, bool]:
    """The elements in order, one after another in host memory: a view where they lie so already, else a copy (and then
    True: `give_back` has something to do). Copies of a GPU's tensors are pinned: they travel at full speed."""
    plain = tensor.detach()
    if plain.device.type == "cpu":
        return (plain.view(-1), False) if plain.is_contiguous() else (plain.contiguous().view(-1), True)
    pinned = torch.empty(plain.numel(), dtype=plain.dtype, pin_memory=plain.is_cuda)
    pinned.copy_(plain.reshape(-1), non_blocking=True)
    if plain.is_cuda:
        torch.cuda.current_stream(plain.device).synchronize()
    return pinned, True


def give_back(staged: Tensor, tensor: Tensor) -> None:
    """Writes the elements into the tensor they came from; on a GPU, in the order of its stream."""
    tensor.detach().copy_(staged.view(tensor.shape), non_blocking=True)
