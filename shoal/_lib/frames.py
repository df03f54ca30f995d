"""The frame: a block of whole lines with the time it was written, and how frames follow each other in a byte stream.

A frame is a header, (microseconds since the epoch, payload length), and a payload of at most 64 KiB of whole lines.
Any prefix of a stream can be read up to its last whole frame, which is all that a crash in mid-write takes away.
Where the bytes are kept is the business of `segments`.
"""

from __future__ import annotations

import struct
from typing import Iterator, Optional, Union

Buffer = Union[bytes, bytearray, memoryview]

MAX_PAYLOAD = 64 * 1024  # bytes
_HEADER = struct.Struct(">QI")
_LENGTH = struct.Struct(">8xI")
HEADER = _HEADER.size  # bytes
MAX_FRAME = HEADER + MAX_PAYLOAD


def encode(at_us: int, payload: bytes) -> bytes:
    """One frame. The payload is one or more whole lines; an empty one is refused, because zeros must not look whole."""
    if not 0 < len(payload) <= MAX_PAYLOAD:
        raise ValueError(f"a frame holds 1 to {MAX_PAYLOAD} bytes, not {len(payload)}; use pack() for longer text")
    return _HEADER.pack(at_us, len(payload)) + payload


def pack(at_us: int, text: bytes) -> bytes:
    """Text of any length as frames: cut after lines, a line over 64 KiB cut into several, a last newline added."""
    if 0 < len(text) <= MAX_PAYLOAD and text.endswith(b"\n"):
        return encode(at_us, text)
    pieces = []
    at = 0
    while at < len(text):
        stop = _cut(text, at)
        piece = text[at:stop]
        pieces.append(encode(at_us, piece if piece.endswith(b"\n") else piece + b"\n"))
        at = stop
    return b"".join(pieces)


def decode(buffer: Buffer) -> Iterator[tuple[int, bytes]]:
    """(time in µs, payload) of each whole frame; stops before a partial one, at `whole(buffer)`."""
    at, end = 0, len(buffer)
    unpack = _HEADER.unpack_from
    while at + HEADER <= end:
        at_us, length = unpack(buffer, at)
        after = at + HEADER + length
        if after > end or not 0 < length <= MAX_PAYLOAD:
            return
        yield at_us, bytes(buffer[at + HEADER : after])
        at = after


def whole(buffer: Buffer, limit: Optional[int] = None) -> int:
    """Length of the whole frames at the beginning of the buffer, or of those among them that fit into `limit` bytes."""
    end = len(buffer) if limit is None else min(limit, len(buffer))
    at = 0
    unpack = _LENGTH.unpack_from
    while at + HEADER <= end:
        (length,) = unpack(buffer, at)
        after = at + HEADER + length
        if after > end or not 0 < length <= MAX_PAYLOAD:
            break
        at = after
    return at


def first(buffer: Buffer) -> int:
    """Length of the frame that begins the buffer, also when only its header is there; 0 where no frame begins."""
    if len(buffer) < HEADER:
        return 0
    (length,) = _LENGTH.unpack_from(buffer, 0)
    return HEADER + int(length) if 0 < length <= MAX_PAYLOAD else 0


def _cut(text: bytes, at: int) -> int:
    after = text.rfind(b"\n", at, at + MAX_PAYLOAD) + 1
    if after:
        return after
    stop = min(at + MAX_PAYLOAD - 1, len(text))
    # Never between the bytes of one UTF-8 character, which has at most three after the first.
    for back in range(3 if stop < len(text) else 0):
        if text[stop - back] & 0xC0 != 0x80:
            return stop - back
    return stop
