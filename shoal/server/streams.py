"""Live streams: server-sent events over HTTP, and the news that many followers of one thing share.

What is followed is read and encoded once, however many look: a `News` keeps the last pieces, each follower walks along
them at its own speed, and one who falls behind finds out and fetches the rest by itself.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from shoal._lib.clock import Deadline
from shoal.server.service import Service

PING_SECONDS = 15.0
PING = b": ping\n\n"
KEPT_PIECES = 64
KEPT_BYTES = 4 << 20

log = logging.getLogger("shoal.server")


def event(data: bytes, *, name: str | None = None, cursor: str | None = None) -> bytes:
    """One event; `data` is JSON and so has no line breaks."""
    head = (f"id: {cursor}\n" if cursor else "") + (f"event: {name}\n" if name else "")
    return head.encode() + b"data: " + data + b"\n\n"


class EventStream(Response):
    """Sends events until they end, the client leaves or the server stops."""

    media_type = "text/event-stream"

    def __init__(self, service: Service, events: AsyncGenerator[bytes]) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._service = service
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._service.metrics.followers += 1
        try:
            await self._pump(receive, send)
        finally:
            self._service.metrics.followers -= 1
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pump(self, receive: Receive, send: Send) -> None:
        """Sends until the end; races the events against the client's leaving and the server's stopping."""
        sending = asyncio.create_task(self._send_all(send))
        leaving = asyncio.create_task(_until_gone(receive))
        try:
            await self._service.long_wait(asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED))
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
        if not sending.cancelled() and (wrong := sending.exception()) is not None:
            log.error("a live stream broke off", exc_info=wrong)

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            async for piece in events:
                await send({"type": "http.response.body", "body": piece, "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Pulse:
    """Tells when a stream was silent for so long that its reader might take it for dead."""

    def __init__(self) -> None:
        self.sent()

    def sent(self) -> None:
        self._quiet = Deadline(PING_SECONDS)

    def due(self) -> bool:
        """Whether a ping is to be sent now; saying so counts as sending it."""
        if not self._quiet.over():
            return False
        self.sent()
        return True


@dataclass(frozen=True, slots=True)
class Piece:
    """Something new, ready to send. `cursor` is the place behind it."""

    body: bytes
    cursor: str = ""


class News(ABC):
    """What is new about one thing, told once to all who follow it. Runs while anybody does."""

    def __init__(self) -> None:
        self.pieces: deque[Piece] = deque()
        self.end = 0  # number of the next piece
        self.over = False
        self._bytes = 0
        self._followers = 0
        self._task: asyncio.Task[None] | None = None
        self._turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def first(self) -> int:
        """Number of the oldest piece that is still kept."""
        return self.end - len(self.pieces)

    @abstractmethod
    async def run(self) -> None:
        """Publishes pieces until there will be no more."""

    def publish(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self.end += 1
        self._bytes += len(piece.body)
        while len(self.pieces) > KEPT_PIECES or (self._bytes > KEPT_BYTES and len(self.pieces) > 1):
            self._bytes -= len(self.pieces.popleft().body)

    def since(self, number: int) -> list[Piece]:
        """The pieces from `number` on; only for numbers not before `first`."""
        return [self.pieces[at] for at in range(number - self.first, len(self.pieces))]

    def tell(self) -> None:
        """Wakes everyone who waits for a turn."""
        turn, self._turn = self._turn, asyncio.get_running_loop().create_future()
        turn.set_result(None)

    async def turn(self) -> bool:
        """Waits until there may be something new; False when a ping is due first."""
        done, _ = await asyncio.wait({self._turn}, timeout=PING_SECONDS)
        return bool(done)

    def enter(self) -> None:
        self._followers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._watched())

    def leave(self) -> bool:
        """True for the last one, after whom it stops."""
        self._followers -= 1
        if self._followers == 0 and self._task is not None:
            self._task.cancel()
        return self._followers == 0

    async def _watched(self) -> None:
        try:
            await self.run()
        except Exception:
            log.exception("a live stream can not be read any more; its followers come back by themselves")
        finally:
            self.over = True
            self.tell()


N = TypeVar("N", bound=News)


class Newsroom(Generic[N]):
    """The news that are being followed, by job."""

    def __init__(self, make: Callable[[str], N]) -> None:
        self._make = make
        self._open: dict[str, N] = {}

    @contextmanager
    def follow(self, job: str) -> Iterator[N]:
        news = self._open.get(job)
        if news is None or news.over:
            news = self._open[job] = self._make(job)
        news.enter()
        try:
            yield news
        finally:
            if news.leave() and self._open.get(job) is news:
                del self._open[job]
