"""How one message lies on a stream: a header, a JSON object, and raw bytes that are never copied on the way.

    !4sIQ   magic, length of meta, length of payload
    meta    compact JSON, an object
    payload bytes, received straight into the place the receiver names

Another magic says that the payload is cut into stripes, of which only the first follows here: see `bulk`. What a
message means, and who may send one, is left to others.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

Meta = dict[str, Any]
Buffer = bytes | bytearray | memoryview
Place = Callable[[Meta, int], memoryview | None]  # where the payload of this meta and size is to land

MAGIC, STRIPED = b"SHL1", b"SHLB"
HEADER = struct.Struct("!4sIQ")
META_LIMIT = 16 << 20  # bytes of JSON in one message
PAYLOAD_LIMIT = 64 << 30  # bytes; more is a stream that went wrong, not a message
WORTH = 1 << 20  # bytes of payload from which several sockets are used, where there are some
MOST_BUFFERS = min(1024, os.sysconf("SC_IOV_MAX"))  # to one call of sendmsg


class Ended(ConnectionError):
    """The stream is over: between two messages (`clean`) or within one."""

    def __init__(self, message: str, clean: bool = False) -> None:
        super().__init__(message)
        self.clean = clean


class Garbled(ConnectionError):
    """What came is no message; nothing that follows can be trusted."""


class Stripes(Protocol):
    """What carries a payload over several sockets, the first of which is given; nothing while it has no others."""

    def __len__(self) -> int: ...

    def send(self, first: socket.socket, views: Sequence[memoryview], size: int) -> None: ...

    def fill(self, first: socket.socket, view: memoryview) -> None: ...


def send(sock: socket.socket, meta: Meta, payload: Sequence[Buffer] = (), bulk: Stripes | None = None) -> int:
    """Sends one message and returns its bytes. The buffers go to the kernel as they lie and may change afterwards.
    ValueError, and nothing is sent, when it is too large or its meta holds what JSON cannot."""
    text = encode(meta)
    views = [view for view in (_flat(part) for part in payload) if view.nbytes]
    size = sum(view.nbytes for view in views)
    if size > PAYLOAD_LIMIT:
        raise ValueError(f"a message's payload has {size} bytes; the limit is {PAYLOAD_LIMIT}: send it in parts")
    if bulk and size >= WORTH:
        sock.sendall(HEADER.pack(STRIPED, len(text), size) + text)
        bulk.send(sock, views, size)
    else:
        send_all(sock, [memoryview(HEADER.pack(MAGIC, len(text), size) + text), *views])
    return HEADER.size + len(text) + size


def receive(sock: socket.socket, place: Place | None = None, bulk: Stripes | None = None) -> tuple[Meta, memoryview]:
    """The next message, its payload in the place named or in memory of its own. Raises Ended or Garbled."""
    head = bytearray(HEADER.size)
    fill(sock, memoryview(head), first=True)
    magic, length, size = HEADER.unpack(head)
    if magic != MAGIC and not (bulk and magic == STRIPED):
        raise Garbled(f"a message begins with {bytes(magic)!r}, not {MAGIC!r}: the peer speaks something else")
    if length > META_LIMIT or size > PAYLOAD_LIMIT:
        raise Garbled(f"a message of {length} + {size} bytes is over the limit of {META_LIMIT} + {PAYLOAD_LIMIT}")
    text = bytearray(length)
    fill(sock, memoryview(text))
    meta = decode(text)
    view = _landing(meta, size, place)
    if bulk and magic == STRIPED:
        bulk.fill(sock, view)
    else:
        fill(sock, view)
    return meta, view


def encode(meta: Meta) -> bytes:
    """The meta as it travels; ValueError when it is too large or holds what JSON cannot."""
    text = json.dumps(meta, separators=(",", ":"), allow_nan=True).encode()
    if len(text) > META_LIMIT:
        raise ValueError(f"a message's meta has {len(text)} bytes; the limit is {META_LIMIT}: send it as payload")
    return text


def decode(text: bytes | bytearray) -> Meta:
    try:
        meta = json.loads(text)
    except (ValueError, RecursionError) as wrong:
        raise Garbled(f"the meta of a message is no JSON: {wrong}") from wrong
    if not isinstance(meta, dict):
        raise Garbled(f"the meta of a message is a {type(meta).__name__}, not an object")
    return meta


def fill(sock: socket.socket, view: memoryview, first: bool = False) -> None:
    """Receives until the view is full. `first` says that an end before the first byte is a clean one."""
    got, size = 0, view.nbytes
    while got < size:
        count = sock.recv_into(view[got:], size - got, socket.MSG_WAITALL)
        if not count:
            raise Ended(f"the stream ended {size - got} bytes early", clean=first and not got)
        got += count


def _landing(meta: Meta, size: int, place: Place | None) -> memoryview:
    if not size:
        return memoryview(b"")
    named = place(meta, size) if place else None
    if named is None:
        try:
            return memoryview(bytearray(size))
        except MemoryError as short:
            raise Garbled(f"a payload of {size} bytes has no place here: there is not so much memory") from short
    view = _flat(named)
    if view.nbytes < size:
        raise Garbled(f"a payload of {size} bytes does not fit the {view.nbytes} bytes kept for it")
    return view[:size]


def _flat(part: Buffer) -> memoryview:
    view = memoryview(part)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def send_all(sock: socket.socket, views: list[memoryview]) -> None:
    """`sendmsg` until all is gone; a slow peer takes a part at a time. Uses the list up."""
    at = 0
    while at < len(views):
        sent = sock.sendmsg(views[at : at + MOST_BUFFERS])
        while at < len(views) and sent >= views[at].nbytes:
            sent -= views[at].nbytes
            at += 1
        if sent:
            views[at] = views[at][sent:]
