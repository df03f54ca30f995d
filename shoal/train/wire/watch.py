"""Sees that callers died while a service still works at their ask, so that nobody waits for the dead.

A thread that reads sees the end of its stream itself, after everything that was sent before it. One that is busy does
not look: here one thread looks for all of them, without reading anything.
"""

from __future__ import annotations

import select
import socket
import threading
from contextlib import suppress
from typing import Protocol

PAUSE = 0.05  # seconds a caller that hung up is given to be served what it had sent
GRACE = 2.0  # seconds `close` waits for the thread


class Call(Protocol):
    """One connection."""

    sock: socket.socket
    busy: bool  # a service works at an ask

    def tell_left(self) -> None:
        """Tells the service that the caller is gone. Harmless twice."""
        ...


class Watch:
    """Looks at all connections of a host. One that hung up is reported when it stays busy."""

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}
        self._ended: set[Call] = set()
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._ear, self._mouth = socket.socketpair()
        self._closed = False
        self._poll.register(self._ear, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name="shoal-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, call: Call) -> None:
        with self._lock:
            self._calls[call.sock.fileno()] = call
        self._wake()

    def drop(self, call: Call) -> None:
        with self._lock:
            self._ended.discard(call)
            if self._calls.pop(call.sock.fileno(), None) is None:
                return
        self._wake()

    def close(self) -> None:
        self._closed = True
        self._wake()
        self._thread.join(GRACE)

    def _wake(self) -> None:
        with suppress(OSError):
            self._mouth.send(b"!")

    def _run(self) -> None:
        watched: set[int] = set()
        while not self._closed:
            with self._lock:
                wanted = set(self._calls)
                wait = PAUSE * 1000 if self._ended else None
            for number in wanted - watched:
                self._poll.register(number, select.POLLRDHUP)
            for number in watched - wanted:
                with suppress(KeyError):
                    self._poll.unregister(number)
            watched = wanted
            ended = [number for number, _event in self._poll.poll(wait) if number != self._ear.fileno()]
            self._hear()
            self._mark(ended)
        self._ear.close()
        self._mouth.close()

    def _hear(self) -> None:
        with suppress(BlockingIOError):
            self._ear.recv(4096, socket.MSG_DONTWAIT)

    def _mark(self, ended: list[int]) -> None:
        """Those that were busy at the look before and still are have left their ask behind: nobody waits for it."""
        with self._lock:
            left = [call for call in self._ended if call.busy]
            for number in ended:
                if number in self._calls and _hung_up(number):
                    self._ended.add(self._calls.pop(number))
            for call in left:
                self._ended.discard(call)
        for call in left:
            call.tell_left()


def _hung_up(number: int) -> bool:
    """Asked again, because the number may have passed to a new connection since the poll."""
    poll = select.poll()
    poll.register(number, select.POLLRDHUP)
    return bool(poll.poll(0))
