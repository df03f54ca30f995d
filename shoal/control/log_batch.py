"""What a shepherd sends as logs: pieces of several streams in one body, each packed for itself."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from shoal.errors import BadSpec

HEAD = struct.Struct(">HQI")  # length of the name, offset, length of the packed data
MOST_UNPACKED = 64 << 20  # bytes of one piece; a shepherd sends at most a few MiB


def read_batch(body: bytes) -> Iterator[tuple[str, int, bytes]]:
    """(stream, offset, frames) of each piece; BadSpec for a batch that is not whole."""
    at, size = 0, len(body)
    while at < size:
        if at + HEAD.size > size:
            raise BadSpec("a log batch ends in the middle of a header; send it again whole")
        name_length, offset, length = HEAD.unpack_from(body, at)
        at += HEAD.size
        if at + name_length + length > size:
            raise BadSpec("a log batch ends in the middle of a piece; send it again whole")
        name = body[at : at + name_length].decode()
        yield name, offset, _unpack(body[at + name_length : at + name_length + length])
        at += name_length + length


def _unpack(packed: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(packed, MOST_UNPACKED)
    if unpacker.unconsumed_tail or not unpacker.eof:
        raise BadSpec("a log piece is not whole or unpacks to more than 64 MiB; send smaller pieces")
    return data
