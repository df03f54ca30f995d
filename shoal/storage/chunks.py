"""The pieces of uploaded files, each named by its SHA-256, kept apart per owner.

The same piece is stored once per owner and never crosses to another: whether a chunk exists would tell one user what
another has. How pieces make files is the business of `manifest`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import BinaryIO

from shoal import errors
from shoal._lib.quantities import format_size
from shoal.storage.blobs import Blobs

CHUNK = 4 * 1024 * 1024  # bytes; every chunk of a file but the last has exactly this size
DIGEST = re.compile(r"[0-9a-f]{64}")
_OWNER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+-]{0,127}")


class Chunks:
    """The chunks in a place for blobs, under `chunks/<owner>/<first two digits>/<digest>`."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def missing(self, owner: str, digests: Iterable[str]) -> set[str]:
        """Those of the digests that this owner has not stored."""
        return {digest for digest in set(digests) if not self._blobs.exists(_key(owner, digest))}

    def put(self, owner: str, digest: str, data: bytes | Iterable[bytes]) -> None:
        """Stores one chunk. errors.BadChunk when the content is not what the name says or is over 4 MiB, and then
        nothing is stored. Twice, also at the same moment, is the same as once."""
        key = _key(owner, digest)
        content = data if isinstance(data, bytes) else _gather(data)
        _check_content(digest, content)
        if not self._blobs.exists(key):
            self._blobs.put(key, content)

    def open(self, owner: str, digest: str) -> BinaryIO:
        """The content of one chunk; errors.NotFound when this owner has not stored it."""
        return self._blobs.open(_key(owner, digest))


def _key(owner: str, digest: str) -> str:
    if not _OWNER.fullmatch(owner):
        raise errors.BadSpec(f"{owner[:100]!r} cannot own chunks; a user name has letters, digits and ._@+- only")
    if not DIGEST.fullmatch(digest):
        raise errors.BadChunk(f"{digest[:100]!r} does not name a chunk; send its SHA-256 as 64 lower-case hex digits")
    return f"chunks/{owner}/{digest[:2]}/{digest}"


def _gather(pieces: Iterable[bytes]) -> bytes:
    content = bytearray()
    for piece in pieces:
        content += piece
        if len(content) > CHUNK:  # refused below; no reason to take in the rest
            break
    return bytes(content)


def _check_content(digest: str, content: bytes) -> None:
    if len(content) > CHUNK:
        raise errors.BadChunk(
            f"chunk {digest} is over {format_size(CHUNK)}; cut the file into pieces of that size", digest=digest
        )
    found = sha256(content).hexdigest()
    if found != digest:
        raise errors.BadChunk(
            f"{len(content)} bytes came for chunk {digest}, but they hash to {found}; send the whole chunk again",
            digest=digest,
            found=found,
        )
