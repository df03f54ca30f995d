"""Ports for the ranks: bound at 0 so that the kernel picks free ones, held so that nobody gets them before launch."""

from __future__ import annotations

import socket
from typing import List, Sequence

from shoal.contract import Seat
from shoal.shepherd.wire import plain_host


class Ports:
    """`numbers` is what the server is told: {member: {name: port}}."""

    def __init__(self, host: str, seats: Sequence[Seat]) -> None:
        self._held: List[socket.socket] = []
        self.numbers = {seat.name: {name: self._reserve(host) for name in seat.ports} for seat in seats}

    def release(self) -> None:
        """Right before launch: now the ranks bind them. Harmless twice."""
        for held in self._held:
            held.close()
        self._held = []

    def _reserve(self, host: str) -> int:
        held = _bound(host)
        self._held.append(held)
        return int(held.getsockname()[1])


def _bound(host: str) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(plain_host(host), 0, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        found.bind(address)
    except OSError:
        # The address peers use may be a router's, or a name this node does not know; then any of ours will have to do.
        found = socket.socket()
        found.bind(("", 0))
    return found
