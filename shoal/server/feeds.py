"""Following one job: its log lines and its record, each read and encoded once for all who look on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

from pydantic_core import to_json

from shoal.control.people import User
from shoal.errors import NotFound
from shoal.server.service import Service
from shoal.server.streams import PING, News, Newsroom, Piece, Pulse, event
from shoal.storage.views import Tail, unpack_cursor

LOG_PAUSE = 0.1  # seconds between two looks at a log that grows
JOB_PAUSE = 0.2  # seconds between two looks at a job that changes
EVERYBODY = User("", admin=True)  # whoever may follow was checked before
LOOK_AGAIN = 1.0  # seconds; the bell is a hint, and another server's bell is not heard here


class LogNews(News):
    """The new lines of one job, from the moment somebody follows it; over when the job has ended and all is read."""

    def __init__(self, service: Service, job: str) -> None:
        super().__init__()
        self._service = service
        self._job = job
        self.cursor: str | None = None
        self.last: dict[str, Any] | None = None  # what the end event says

    async def run(self) -> None:
        bell, call = self._service.parts.bell, self._service.call
        view = await call(self._service.parts.logs.follow, self._job, tail=0)
        self.cursor = view.cursor
        while True:
            began = time.monotonic()
            seen = bell.number(f"log:{self._job}"), bell.number(f"job:{self._job}")
            ended = await call(end_of, self._service, self._job)  # before reading: what comes after it is not missed
            while (piece := await call(next_piece, view)) is not None:
                self.publish(piece)
                self.cursor = piece.cursor
            if ended is not None:
                self.last = ended
                return
            self.tell()
            await _rung(self._service, self._job, seen)
            await asyncio.sleep(max(0.0, began + LOG_PAUSE - time.monotonic()))

    def in_step(self, view: Tail) -> bool:
        """Whether a follower's own view stands exactly where the shared one does, so that it can walk along."""
        if self.cursor is None:
            return False
        return self.cursor == view.cursor or unpack_cursor(self.cursor) == unpack_cursor(view.cursor)


class JobNews(News):
    """One job's record whenever it changed; over after its final state."""

    def __init__(self, service: Service, job: str) -> None:
        super().__init__()
        self._service = service
        self._job = job

    async def run(self) -> None:
        bell, call = self._service.parts.bell, self._service.call
        topic, shown = f"job:{self._job}", -1
        while True:
            began, seen = time.monotonic(), bell.number(topic)
            try:
                change = await call(self._service.store.last_change, self._job)
                record = await call(self._service.desk.show, EVERYBODY, self._job) if change != shown else None
            except NotFound:
                return  # removed meanwhile
            if record is not None:
                shown = change
                self.publish(Piece(event(to_json(record, inf_nan_mode="null"))))
                if record["ended_at"] is not None:
                    return
                self.tell()
            await bell.wait(topic, seen, LOOK_AGAIN)
            await asyncio.sleep(max(0.0, began + JOB_PAUSE - time.monotonic()))


class Feeds:
    """All that is being followed on this server."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._logs = Newsroom(lambda job: LogNews(service, job))
        self._jobs = Newsroom(lambda job: JobNews(service, job))

    async def watch(self, job: str) -> AsyncGenerator[bytes]:
        """The record now, and again whenever it changed; a slow reader gets the newest only."""
        with self._jobs.follow(job) as news:
            number = max(0, news.end - 1)
            while True:
                if news.end > number:
                    number = news.end
                    yield news.pieces[-1].body
                elif news.over:
                    return
                elif not await news.turn():
                    yield PING

    async def lines(self, job: str, view: Tail, follow: bool, shared: bool) -> AsyncGenerator[bytes]:
        """The lines of `view`; with `follow` also those to come, from the shared news where nothing is filtered."""
        if not follow:
            async for piece in self._drain(view):
                yield piece.body
            yield _end_event(await self._service.call(state_of, self._service, job))
            return
        with self._logs.follow(job) as news:
            async for body in self._follow(job, view, news, shared):
                yield body

    async def _follow(self, job: str, view: Tail, news: LogNews, shared: bool) -> AsyncGenerator[bytes]:
        pulse = Pulse()
        while True:
            over = news.over  # before reading: what is read after it is all there is
            cursor = view.cursor
            async for piece in self._drain(view):
                cursor = piece.cursor
                pulse.sent()
                yield piece.body
            if over:
                if news.last is not None:
                    yield _end_event(news.last)
                return
            if shared and news.in_step(view):
                async for piece in _walk_along(news):
                    cursor = piece.cursor or cursor
                    yield piece.body
                view = await self._service.call(self._service.parts.logs.follow, job, cursor=cursor)
            else:
                await news.turn()
                if pulse.due():
                    yield PING

    async def _drain(self, view: Tail) -> AsyncGenerator[Piece]:
        call = self._service.search if view.searches else self._service.call
        while (piece := await call(next_piece, view)) is not None:
            yield piece


async def _walk_along(news: LogNews) -> AsyncGenerator[Piece]:
    """The shared pieces from now on; returns when they are over, or when this reader fell too far behind."""
    number, pulse = news.end, Pulse()
    while number >= news.first:
        for piece in news.since(number):
            pulse.sent()
            yield piece
            number += 1
            if number < news.first:
                return
        if number < news.end:
            continue
        if news.over:
            return
        await news.turn()
        if pulse.due():
            yield Piece(PING)


async def _rung(service: Service, job: str, seen: tuple[int, int]) -> None:
    """Waits until the job's log or its record is said to have changed, or a second has passed."""
    bell = service.parts.bell
    waits = {
        asyncio.create_task(bell.wait(f"log:{job}", seen[0], LOOK_AGAIN)),
        asyncio.create_task(bell.wait(f"job:{job}", seen[1], LOOK_AGAIN)),
    }
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def next_piece(view: Tail) -> Piece | None:
    """The next lines, encoded; in the thread that read them."""
    batch = view.poll()
    if batch is None:
        return None
    return Piece(event(to_json({"lines": batch.lines}), cursor=batch.cursor), batch.cursor)


def state_of(service: Service, job: str) -> dict[str, Any]:
    try:
        record = service.store.job(job)
    except NotFound:
        return {"state": "deleted", "reason": "deleted", "exit_code": None, "message": ""}
    return {
        "state": record.state.value,
        "reason": record.reason.code,
        "exit_code": record.exit_code,
        "message": record.message,
    }


def end_of(service: Service, job: str) -> dict[str, Any] | None:
    """What the end event says, once the job has ended."""
    state = state_of(service, job)
    return state if state["state"] in ("succeeded", "failed", "stopped", "deleted") else None


def _end_event(state: dict[str, Any]) -> bytes:
    return event(to_json(state), name="end")
