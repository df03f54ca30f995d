"""Sees links end while nobody reads from them: a neighbour that died is known before it is called again."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from shoal.train.wire.link import Link

ENDED = select.POLLRDHUP | select.POLLHUP | select.POLLERR | select.POLLNVAL


class Watch:
    """One thread over all links of a mesh. `ended(rank, link)` is called once for each link that ends from outside."""

    def __init__(self, ended: Callable[[int, Link], None]) -> None:
        self._ended = ended
        self._links: dict[int, Link] = {}
        self._lock = threading.Lock()
        self._ear, self._mouth = socket.socketpair()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="shoal-links", daemon=True)
        self._thread.start()

    def add(self, rank: int, link: Link) -> None:
        with self._lock:
            self._links[rank] = link
        self._wake()

    def drop(self, rank: int) -> None:
        with self._lock:
            self._links.pop(rank, None)
        self._wake()

    def close(self) -> None:
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):
            self._mouth.send(b"!")

    def _run(self) -> None:
        while not self._closed:
            with self._lock:
                watched = {link.fileno(): (rank, link) for rank, link in self._links.items()}
            watched.pop(-1, None)  # closed here, and about to be dropped
            poll = select.poll()
            poll.register(self._ear, select.POLLIN)
            for number in watched:
                poll.register(number, ENDED)
            for number, _event in poll.poll():
                if number in watched:
                    self._tell(*watched[number])
                else:
                    self._ear.recv(4096)
        self._ear.close()
        self._mouth.close()

    def _tell(self, rank: int, link: Link) -> None:
        with self._lock:
            known = self._links.get(rank) is link
            if known:
                del self._links[rank]
        if known and not link.closed:
            self._ended(rank, link)
