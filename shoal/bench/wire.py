"""HTTP as thousands of simulated clients speak it from one process: kept connections, plain bytes, nothing decoded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import cast
from urllib.parse import urlsplit

_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"
_LAST_EVENT = b"event: end\n"


def request(method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if method == "POST":
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def host_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "127.0.0.1", parts.port or 80


class Connection(asyncio.Protocol):
    """One kept connection: a request at a time, answered whole. Answers must say their length."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._body_at = self._end_at = -1
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(cls, host: str, port: int) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    async def ask(self, message: bytes) -> bytes:
        """The body of the answer; ConnectionError for anything but 200."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(message)
        return await self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._end_at < 0:
            self._read_head()
        if 0 <= self._end_at <= len(self._buffer):
            self._deliver()

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionError("the server hung up"))

    def _read_head(self) -> None:
        end = self._buffer.find(_HEAD_END)
        if end >= 0:
            head = bytes(self._buffer[:end]).lower()
            at = head.index(_LENGTH) + len(_LENGTH)
            self._body_at = end + len(_HEAD_END)
            self._end_at = self._body_at + int(head[at:].split(b"\r\n", 1)[0])

    def _deliver(self) -> None:
        head, body = bytes(self._buffer[:12]), bytes(self._buffer[self._body_at : self._end_at])
        self._buffer.clear()
        self._body_at = self._end_at = -1
        answer, self._answer = self._answer, None
        if answer is None or answer.done():
            return
        if head.endswith(b" 200"):
            answer.set_result(body)
        else:
            answer.set_exception(ConnectionError(f"answered {head.decode()}: {body[:300].decode(errors='replace')}"))


class Stream(asyncio.Protocol):
    """A stream of events; each one's raw text, with what frames it on the wire, goes to `take`. `over` when it ends."""

    def __init__(self, message: bytes, take: Callable[[bytes], None]) -> None:
        self._message = message
        self._take = take
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._message)

    def data_received(self, data: bytes) -> None:
        *events, self._buffer = (self._buffer + data).split(b"\n\n")
        try:
            for one in events:
                self._take(one)
                if _LAST_EVENT in one:
                    self._end(None)
        except Exception as wrong:
            self._end(wrong)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if self._transport is not None:
            self._transport.close()
        if self.over.done():
            return
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)
