"""What an algorithm may ask of its peers. Every wait ends: with the result, with PeerLost, or with WaitedTooLong that
names who is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Group(Protocol):
    """The workers that agree with each other. Calls of one rank come from one thread at a time; collective calls must
    come in the same order on every member. What is said of tensors here holds for arrays of numpy."""

    rank: int
    size: int

    def members(self) -> tuple[int, ...]:
        """The ranks that have neither left nor died, as far as it is known here, in order; the rank itself is one of
        them. A goodbye may be on its way: what all must agree on they exchange."""
        ...

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> None:
        """In place, `sum`, `mean`, `min`, `max` or `product` over the members (those that left do not count). Bit-equal
        on all of them."""
        ...

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        """In place, the source's values."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """Plain data (what JSON can hold) of every member, in the order of `members()`. Never pickled."""
        ...

    def send(self, to: int, tensor: Tensor) -> None:
        """To one peer; returns when the tensor may be changed again. Messages of a pair keep their order."""
        ...

    def receive(self, source: int, out: Tensor) -> None:
        """The next message of that peer, into `out`."""
        ...

    def leave(self) -> None:
        """No more calls will come from here: the others go on without. Harmless twice."""
        ...
