"""A bell per topic: who waits for news of a job, a gang or a log is woken at once instead of asking again and again.

Only a hint: whoever is woken looks at the database. Any thread may ring; waiting belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import OrderedDict, defaultdict

MOST_TOPICS = 50_000  # whose numbers are remembered; a forgotten one is at 0 again, which wakes once too often


class Bell:
    """`wait` returns as soon as the topic was rung after `seen`; numbers only grow, a topic never rung is at 0."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._rung: OrderedDict[str, int] = OrderedDict()
        self._waiting: dict[str, set[asyncio.Future[None]]] = defaultdict(set)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Names the event loop that waits; must be called before threads ring."""
        self._loop = loop

    def ring(self, topic: str) -> None:
        with self._lock:
            self._rung[topic] = next(self._numbers)
            self._rung.move_to_end(topic)
            if len(self._rung) > MOST_TOPICS:
                self._rung.popitem(last=False)
            asleep = bool(self._waiting.get(topic))
        if asleep and self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake, topic)

    def number(self, topic: str) -> int:
        return self._rung.get(topic, 0)

    async def wait(self, topic: str, seen: int, timeout: float) -> int:
        """The topic's number, once it differs from `seen` or the time is over."""
        self._loop = self._loop or asyncio.get_running_loop()
        future: asyncio.Future[None] = self._loop.create_future()
        with self._lock:
            if self._rung.get(topic, 0) != seen:
                return self._rung.get(topic, 0)
            self._waiting[topic].add(future)
        try:
            await asyncio.wait_for(future, timeout)
        except TimeoutError:
            pass
        finally:
            self._forget(topic, future)
        return self.number(topic)

    def drop(self, topic: str) -> None:
        """Forgets a topic that will not be rung again."""
        with self._lock:
            self._rung.pop(topic, None)

    def _wake(self, topic: str) -> None:
        for future in self._waiting.get(topic, ()):
            if not future.done():
                future.set_result(None)

    def _forget(self, topic: str, future: asyncio.Future[None]) -> None:
        with self._lock:
            waiting = self._waiting.get(topic)
            if waiting is not None:
                waiting.discard(future)
                if not waiting:
                    del self._waiting[topic]
