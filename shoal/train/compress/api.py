"""What every squeezer keeps: the error it made, fed back into the next gradient.

p = g + e; m = C(p); e = p − m. So the sum of all that was sent, and the error that is left, equal the sum of all
gradients: nothing is lost, some of it comes later. The errors belong to a checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from shoal.train.group.api import Group


class Compressor(ABC):
    """One sender's squeezer. `key` names what is sent (a space, a bucket, a peer): each has an error of its own. Not
    for several threads at once."""

    name: str

    def __init__(self) -> None:
        self.errors: dict[str, Tensor] = {}

    def encode(self, key: str, flat: Tensor) -> Tensor:
        """The bytes to send for a flat tensor and for what earlier ones of this key left over: a uint8 tensor on the
        same device, a fresh one each time, `size(flat)` long. `flat` stays as it is."""
        error = self.errors.get(key)
        if error is None or error.numel() != flat.numel():
            error = self.errors[key] = torch.zeros(flat.numel(), dtype=plain(flat.dtype), device=flat.device)
        error.add_(flat.detach().reshape(-1))
        code = self.squeeze(error)
        # What was not a number has been sent as such; it must not stay here and spoil everything that follows.
        error.nan_to_num_(0.0, 0.0, 0.0)
        return code

    @abstractmethod
    def squeeze(self, flat: Tensor) -> Tensor:
        """The code of `flat`, of which only the error is left: flat ← flat − decode(code)."""

    @abstractmethod
    def decode(self, code: Any, out: Tensor) -> None:
        """What a code stands for, into a flat contiguous tensor of the length and type of what was encoded. `code` is a
        uint8 tensor or any buffer of bytes."""

    @abstractmethod
    def size(self, flat: Tensor) -> int:
        """Bytes of a code for such a tensor."""

    def forget(self, key: str) -> None:
        """The error of one key is dropped: its receiver is gone."""
        self.errors.pop(key, None)

    def state(self) -> dict[str, Tensor]:
        """For a checkpoint: copies."""
        return {key: error.clone() for key, error in self.errors.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.errors = {key: torch.as_tensor(error).clone() for key, error in state.items()}


class Reducer(Protocol):
    """The mean over a group where every member squeezes. All members end with the same bits."""

    def mean(self, named: Sequence[tuple[str, Tensor]], group: Group) -> int:
        """Each tensor becomes the mean over the members, in place. Collective: the same names in the same order
        everywhere. A name keeps its error from call to call, in whatever company it comes. Returns the bytes this
        member put in. When it raises, the errors are those from before."""
        ...

    def state(self) -> dict[str, Tensor]: ...

    def load(self, state: Mapping[str, Tensor]) -> None: ...


def plain(dtype: torch.dtype) -> torch.dtype:
    """The type in which errors are kept and values travel: double stays double, the rest is single."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def as_bytes(code: Any) -> Tensor:
    """A code as a uint8 tensor, without copying."""
    return code if isinstance(code, Tensor) else torch.frombuffer(code, dtype=torch.uint8)
