"""A running server's inner parts, and its life: threads for what blocks, streams that end at once when it stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from shoal._lib import clock
from shoal.control import Desk, Gangs, Loop, Parts
from shoal.control.alarms import Alarms
from shoal.server.auth import Guard
from shoal.server.metrics import Metrics
from shoal.server.passwords import Tries
from shoal.server.settings import Settings

THREADS = 16
SEARCHERS = 3

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("shoal.server")


class Service:
    """What the routes work with. One per process; `start` and `stop` belong to the event loop."""

    def __init__(self, parts: Parts, settings: Settings, version: str) -> None:
        self.parts = parts
        self.settings = settings
        self.version = version
        self.started_at = clock.now()
        self.store = parts.store
        self.desk = Desk(parts)
        # Few and of their own: copying outputs takes minutes, and matching patterns may; requests do not wait for them.
        self._copiers = ThreadPoolExecutor(2, thread_name_prefix="outputs")
        self._searchers = ThreadPoolExecutor(SEARCHERS, thread_name_prefix="search")
        self.gangs = Gangs(parts, self._copiers.submit)
        self.loop = Loop(parts, self.gangs)
        self.alarms = Alarms(parts.store)
        self.metrics = Metrics()
        self.tries = Tries()
        # Each check of a password takes 64 MiB: more at once would let strangers fill the memory.
        self.hashing = asyncio.Semaphore(2)
        self.guard = Guard(parts.store, self.call)
        self._closing = False
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="request")
        self._waiting: set[asyncio.Task[object]] = set()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def closing(self) -> bool:
        return self._closing

    async def call(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs what may block (the database, a disk) in a thread, so that the event loop never waits for it."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(act, *args, **kwargs))

    async def search(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for what looks through whole logs; it takes its turn with its like only."""
        return await asyncio.get_running_loop().run_in_executor(self._searchers, partial(act, *args, **kwargs))

    async def long_wait(self, waiting: Awaitable[object]) -> bool:
        """Waits for something that may take long. False as soon as the server stops: then it was cut short."""
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            await waiting
        except asyncio.CancelledError:
            if not self._closing:
                raise
            return False
        finally:
            self._waiting.discard(task)
        return True

    async def start(self) -> None:
        self.parts.bell.bind(asyncio.get_running_loop())
        self._tasks = [asyncio.create_task(self.loop.run()), asyncio.create_task(self.alarms.run())]

    def end_streams(self) -> None:
        """Ends every stream and long poll at once; their clients come back when the next server is there."""
        self._closing = True
        for task in list(self._waiting):
            task.cancel()

    async def stop(self) -> None:
        """Gives back the lease and everything held. Jobs keep running."""
        self.end_streams()
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                log.error("a background task failed while stopping", exc_info=ended)
        for threads in (self._threads, self._copiers, self._searchers):
            threads.shutdown(wait=False, cancel_futures=True)
        for engine in self.parts.engines.values():
            engine.close()
        self.parts.logs.close()
        self.store.close()
