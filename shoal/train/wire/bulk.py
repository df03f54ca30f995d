"""One link over several sockets: a large payload is cut into stripes that travel at the same time.

One stream does not fill a fast network, nor two cores of one host. The first socket carries every message and the first
stripe of a large payload; the others carry stripes and nothing else. Both ends cut by the same rule, so a stripe needs
no header.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import suppress
from typing import Any

from shoal.train.wire.frames import Garbled, fill, send_all

MOST = 16  # sockets of one link
_PAGE = 4096  # bytes

Job = tuple[Callable[[socket.socket, Any], None], socket.socket, Any]


class Bulk:
    """The further sockets of a link, in the same order at both ends. One `send` and one `fill` at a time."""

    def __init__(self) -> None:
        self._socks: list[socket.socket] = []
        self._threads: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self._socks)

    def add(self, sock: socket.socket) -> None:
        if len(self) + 1 >= MOST:
            raise Garbled(f"a link has at most {MOST} sockets")
        self._socks.append(sock)

    def send(self, first: socket.socket, views: Sequence[memoryview], size: int) -> None:
        """All stripes; the first one over the link's own socket, in this thread."""
        parts = [cut(views, begin, end) for begin, end in stripes(size, len(self) + 1)]
        self._at_once([(send_all, sock, part) for sock, part in zip((first, *self._socks), parts, strict=True)])

    def fill(self, first: socket.socket, view: memoryview) -> None:
        """The opposite."""
        parts = [view[begin:end] for begin, end in stripes(view.nbytes, len(self) + 1)]
        self._at_once([(fill, sock, part) for sock, part in zip((first, *self._socks), parts, strict=True)])

    def close(self) -> None:
        """Harmless twice; who sends or receives gets an error."""
        for sock in self._socks:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False)

    def _at_once(self, jobs: Sequence[Job]) -> None:
        """All of them, also when one fails: nothing is written to a buffer after this has returned."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(2 * len(self), "shoal-bulk")  # both directions at once
        futures = [self._threads.submit(act, sock, what) for act, sock, what in jobs[1:]]
        try:
            act, sock, what = jobs[0]
            act(sock, what)
        except BaseException:
            self.close()  # the others wait for a peer that has gone or given up
            raise
        finally:
            wait_for(futures)
        for future in futures:
            future.result()


def stripes(size: int, count: int) -> list[tuple[int, int]]:
    """Ranges of whole pages, as equal as can be; the last ones may be shorter, or empty."""
    step = -(-size // (count * _PAGE)) * _PAGE
    return [(min(size, number * step), min(size, (number + 1) * step)) for number in range(count)]


def cut(views: Sequence[memoryview], begin: int, end: int) -> list[memoryview]:
    """A range of the views put end to end, not copied."""
    found, at = [], 0
    for view in views:
        first, last = max(begin, at), min(end, at + view.nbytes)
        if first < last:
            found.append(view[first - at : last - at])
        at += view.nbytes
    return found
