"""Bytes to a client: iterators that block drawn in a thread, and downloads of which a client may ask a range."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from shoal.errors import ShoalError
from shoal.server import problems
from shoal.server.service import Service

PIECE = 1 << 20  # bytes sent at once
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class NoSuchRange(ShoalError):
    """A range that begins behind the end."""

    code = "range"
    status = 416


async def drawn(service: Service, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces, gathered in a thread into blocks worth sending."""
    try:
        while block := await service.call(_gather, pieces):
            yield block
    finally:
        close = getattr(pieces, "close", None)
        if close is not None:
            await service.call(close)


def _gather(pieces: Iterator[bytes]) -> bytes:
    block, size = [], 0
    for piece in pieces:
        block.append(piece)
        size += len(piece)
        if size >= PIECE:
            break
    return b"".join(block)


def wanted_range(header: str | None, size: int) -> tuple[int, int] | None:
    """(start, stop) of a Range header; None for all of it, also when the header is of a kind we do not serve."""
    match = _RANGE.fullmatch(header or "")
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    if start >= size or start >= stop:
        raise NoSuchRange(f"the file has {size} bytes; ask for a range that begins before its end", size=size)
    return start, stop


@dataclass(frozen=True, slots=True)
class Content:
    """What is to be downloaded: `version` differs when the bytes do; `read(start, stop)` gives them."""

    path: str
    size: int
    version: str
    read: Callable[[int, int], Iterator[bytes]]


def download(service: Service, request: Request, content: Content) -> Response:
    """A file as an attachment, or the range of it that was asked for, unless it changed since the client saw it."""
    tag, size = f'"{content.version}"', content.size
    name = quote(content.path.rsplit("/", 1)[-1], safe="")
    headers = {
        "accept-ranges": "bytes",
        "etag": tag,
        "content-disposition": f"attachment; filename*=UTF-8''{name}",
    }
    unchanged = request.headers.get("if-range", tag) == tag
    try:
        wanted = wanted_range(request.headers.get("range"), size) if unchanged else None
    except NoSuchRange as wrong:
        refusal = problems.answer(wrong)
        refusal.headers["content-range"] = f"bytes */{size}"
        return refusal
    start, stop = wanted or (0, size)
    headers["content-length"] = str(stop - start)
    if wanted is not None:
        headers["content-range"] = f"bytes {start}-{stop - 1}/{size}"
    body = drawn(service, content.read(start, stop))
    return StreamingResponse(body, 200 if wanted is None else 206, headers, "application/octet-stream")
