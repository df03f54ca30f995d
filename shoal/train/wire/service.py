"""What may stand behind a host, and how it knows its callers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.train.wire.frames import Buffer, Meta

Answer = tuple[Meta, Sequence[Buffer]]


@dataclass(frozen=True)
class Peer:
    """A caller that proved itself. One connection; the same name may come again under another number."""

    name: str  # worker-0
    number: int  # of the connection, never used again
    address: str


class Service(Protocol):
    """What answers behind a host. Calls of one peer come one at a time, those of several at once."""

    def handle(self, peer: Peer, meta: Meta, payload: memoryview) -> Answer:
        """The answer to one message: a meta and buffers that stay as they are until it is sent. May block. What it
        raises is raised again at the asker. `payload` lies where `buffer` said."""
        ...

    def buffer(self, peer: Peer, meta: Meta, size: int) -> memoryview | None:
        """Where a payload is to land; None for memory of its own. Must not block. A ShoalError is the answer then, and
        there is no `handle`; anything else ends the connection."""
        ...

    def left(self, peer: Peer) -> None:
        """The connection is over: closed or dead. Called once, perhaps while `handle` for this peer still blocks: it
        should end then. No `handle` begins afterwards."""
        ...
