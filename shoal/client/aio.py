"""The same jobs for asynchronous programs: what waits is awaited, what streams is iterated with `async for`."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from shoal.client.http import Api
from shoal.client.jobs import Job, find, jobs, submit
from shoal.client.lines import LogLine

if TYPE_CHECKING:
    from shoal.client.draft import Source
    from shoal.client.upload import Progress

T = TypeVar("T")
AHEAD = 16  # batches a thread may read before the program takes them


class AsyncJob:
    """A Job whose waits are awaited. `sync` is the job itself, with all its attributes."""

    def __init__(self, sync: Job) -> None:
        self.sync = sync

    def __repr__(self) -> str:
        return f"<AsyncJob {self.id} {self.name!r} {self.state}>"

    @property
    def id(self) -> str:
        return self.sync.id

    @property
    def name(self) -> str:
        return self.sync.name

    @property
    def state(self) -> str:
        return self.sync.state

    @property
    def reason(self) -> str:
        return self.sync.reason

    @property
    def message(self) -> str:
        return self.sync.message

    @property
    def exit_code(self) -> int | None:
        return self.sync.exit_code

    @property
    def data(self) -> dict[str, Any]:
        return self.sync.data

    @property
    def ended(self) -> bool:
        return self.sync.ended

    async def refresh(self) -> AsyncJob:
        await asyncio.to_thread(self.sync.refresh)
        return self

    async def watch(self, timeout: float | None = None) -> AsyncIterator[AsyncJob]:
        async for _ in _drawn(self.sync.watch(timeout)):
            yield self

    async def wait(self, timeout: float | None = None) -> AsyncJob:
        async for _ in self.watch(timeout):
            if self.ended:
                return self
        # The stream is over: what is left is one question.
        await asyncio.to_thread(self.sync.wait, 0.0 if timeout is not None else None)
        return self

    async def logs(
        self,
        rank: str | int | Iterable[str | int] | None = None,
        since: float | str | None = None,
        tail: int | None = None,
        grep: str | None = None,
        follow: bool = False,
        cursor: str | None = None,
        attempt: int | None = None,
    ) -> AsyncIterator[LogLine]:
        lines = self.sync.logs(rank, since, tail, grep, follow, cursor, attempt)
        async for batch in _drawn(lines.batches()):
            for line in batch:
                yield line

    async def follow(self, file: TextIO | None = None) -> AsyncJob:
        """Prints the lines of all ranks as they come, until the job has ended."""
        out = file or sys.stdout
        async for line in self.logs(follow=True):
            print(f"{line.rank} | {line.text}", file=out, flush=True)
        return await self.wait()

    async def stop(self, grace: float | None = None, force: bool = False, message: str | None = None) -> AsyncJob:
        await asyncio.to_thread(self.sync.stop, grace, force, message)
        return self

    async def events(self) -> list[dict[str, Any]]:
        return await asyncio.to_thread(lambda: list(self.sync.events()))

    async def why(self) -> dict[str, Any]:
        return await asyncio.to_thread(self.sync.why)

    async def stacks(
        self, rank: str | int | Iterable[str | int] | None = None, timeout: float = 60.0
    ) -> dict[str, str]:
        return await asyncio.to_thread(self.sync.stacks, rank, timeout)

    async def diff(self) -> str:
        return await asyncio.to_thread(self.sync.diff)

    async def get(self, target: str | Path = ".", path: str = "") -> Path:
        return await asyncio.to_thread(self.sync.get, target, path)

    async def remove(self) -> None:
        await asyncio.to_thread(self.sync.remove)

    async def clone(self, **changes: Any) -> AsyncJob:
        return AsyncJob(await asyncio.to_thread(lambda: self.sync.clone(**changes)))

    async def result(self, timeout: float | None = None) -> Any:
        await self.wait(timeout)
        return await asyncio.to_thread(self.sync.result)


async def asubmit(
    source: Source,
    *,
    folder: str | Path | None = None,
    base: str | Path | None = None,
    api: Api | None = None,
    progress: Progress | None = None,
    **keys: Any,
) -> AsyncJob:
    """`submit` for asynchronous programs."""

    def send() -> Job:
        return submit(source, folder=folder, base=base, api=api, progress=progress, **keys)

    return AsyncJob(await asyncio.to_thread(send))


async def afind(ref: str, api: Api | None = None) -> AsyncJob:
    """`find` for asynchronous programs."""
    return AsyncJob(await asyncio.to_thread(find, ref, api))


async def ajobs(**filters: Any) -> AsyncIterator[AsyncJob]:
    """`jobs` for asynchronous programs."""
    async for one in _drawn(jobs(**filters)):
        yield AsyncJob(one)


class _End:
    """Behind the last item: how the reading ended."""

    def __init__(self, wrong: BaseException | None) -> None:
        self.wrong = wrong


async def _drawn(source: Iterator[T]) -> AsyncIterator[T]:
    """The items of an iterator that blocks, read in a thread of its own: many followers would drain the loop's pool."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[T | _End] = asyncio.Queue()
    room, left = threading.Semaphore(AHEAD), threading.Event()

    def give(item: T | _End) -> bool:
        """False when nobody takes it any more."""
        room.acquire()
        if left.is_set() or loop.is_closed():
            return False
        loop.call_soon_threadsafe(queue.put_nowait, item)
        return True

    def read() -> None:
        try:
            if all(give(item) for item in source):
                give(_End(None))
        except BaseException as wrong:
            give(_End(wrong))

    threading.Thread(target=read, daemon=True, name="shoal-stream").start()
    try:
        while not isinstance(item := await queue.get(), _End):
            room.release()
            yield item
        if item.wrong is not None:
            raise item.wrong
    finally:
        left.set()
        room.release()
