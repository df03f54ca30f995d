"""What travels between chief and workers: a pickle, and beside it the large buffers it leaves out.

A buffer is named by the SHA-256 of its content, so that the data of a grid search goes to each worker once and not with
every task. Only what a proven peer sent is ever opened; see `shoal.train.wire.proof`.
"""

from __future__ import annotations

import hashlib
import pickle
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

try:
    from joblib.externals import cloudpickle  # type: ignore[import-untyped]
except ImportError:  # from joblib 1.6 on it is a package of its own
    import cloudpickle  # type: ignore[import-untyped]

WORTH = 16 << 10  # bytes from which a buffer travels beside the pickle
SHARED = 1 << 20  # bytes from which tasks share one array that nobody may change; joblib's own default


@dataclass(frozen=True)
class Part:
    """One buffer. `shared`: the tasks of a worker see the same bytes, read-only; else each has a copy of its own."""

    digest: str
    content: memoryview
    shared: bool

    @property
    def size(self) -> int:
        return self.content.nbytes


@dataclass(frozen=True)
class Parcel:
    """A thing in pieces. It holds the arrays themselves, not copies, where they are large."""

    pickled: bytes
    parts: tuple[Part, ...] = ()

    @property
    def size(self) -> int:
        return len(self.pickled) + sum(part.size for part in self.parts)


class Marks:
    """Digests of large arrays by where they lie, so that each is read once in a call and not with every task.

    For one call only: between two calls the script may write into its arrays.
    """

    def __init__(self, shared: int | None = SHARED) -> None:
        self._shared = shared
        self._known: dict[tuple[int, int], tuple[weakref.ref[Any], str]] = {}

    def part(self, buffer: pickle.PickleBuffer) -> Part | None:
        """None for a buffer that stays in the pickle."""
        view = buffer.raw()
        if view.nbytes < WORTH:
            return None
        if self._shared is None or view.nbytes < self._shared:
            copy = memoryview(bytes(view))  # the script may write into it before it is on its way
            return Part(digest(copy), copy, shared=False)
        return Part(self._digest(view), view, shared=True)

    def _digest(self, view: memoryview) -> str:
        owner, at = _owner(view.obj), _address(view.obj)
        if owner is None or at is None:
            return digest(view)
        ref, known = self._known.get((at, view.nbytes), (None, ""))
        if ref is None or ref() is not owner:
            known = digest(view)
            self._known[at, view.nbytes] = (weakref.ref(owner), known)
        return known


def pack(thing: Any, marks: Marks) -> Parcel:
    """Raises whatever the thing raises when it is pickled."""
    parts: list[Part] = []

    def keep_out(buffer: pickle.PickleBuffer) -> bool:
        part = marks.part(buffer)
        if part is not None:
            parts.append(part)
        return part is None

    pickled = cloudpickle.dumps(thing, protocol=5, buffer_callback=keep_out)
    return Parcel(pickled, tuple(parts))


def unpack(pickled: bytes | memoryview, contents: Sequence[memoryview | bytearray | bytes]) -> Any:
    """The opposite. Arrays over writable contents are writable."""
    return pickle.loads(pickled, buffers=contents)  # noqa: S301 of a peer that proved the attempt's secret


def digest(content: memoryview | bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _owner(held: Any) -> Any:
    """The array whose memory it is: views come and go, and their addresses with them. None where nobody can tell."""
    while _address(getattr(held, "base", None)) is not None:
        held = held.base
    try:
        weakref.ref(held)
    except TypeError:
        return None
    return held


def _address(held: Any) -> int | None:
    told = getattr(held, "__array_interface__", None)
    return int(told["data"][0]) if isinstance(told, dict) else None
