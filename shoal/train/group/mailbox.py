"""Messages from one member to another on one machine: a ring of bytes of their own, made by the sender at the first.

Two counters, bytes written and bytes taken, each with one writer; who waits sleeps on the other's bell. A message is a
line that tells what it is, and its bytes in pieces. What fits the ring is gone at once; a larger message waits for its
receiver.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.train.errors import Disagreement, PeerLost
from shoal.train.group import calls
from shoal.train.group.attendance import Attendance
from shoal.train.group.board import LEFT
from shoal.train.group.lanes import pieces_of
from shoal.train.group.staging import count
from shoal.train.wire.segment import PAGE, Segment

RING = 1 << 20  # bytes
PIECE = 256 << 10  # bytes written before the receiver may begin to read them
LINE = 64  # bytes; everything begins on such a boundary
WRITTEN, TAKEN = 0, 8  # words, a line apart


class Mailboxes:
    """The rings of one member, from it and to it."""

    def __init__(self, attendance: Attendance, path: Path) -> None:
        self._at = attendance
        self._path = path
        self._to: dict[int, _Ring] = {}
        self._from: dict[int, _Ring] = {}

    def send(self, to: int, flat: Any) -> None:
        if to not in self._to:
            path = self._name(self._at.rank, to)
            self._to[to] = _Ring(Segment.create(path, PAGE + RING, touch=True), self._at, to)
        self._to[to].send(flat)

    def receive(self, source: int, flat: Any) -> None:
        if source not in self._from:
            self._from[source] = _Ring(self._find(source), self._at, source)
        self._from[source].receive(flat)

    def close(self) -> None:
        for ring in (*self._to.values(), *self._from.values()):
            ring.segment.close()

    def _find(self, source: int) -> Segment:
        path = self._name(source, self._at.rank)
        left = self._at.boards[source].words
        self._at.until(lambda: path.exists() or bool(left[LEFT]), source, calls.sign(calls.SEND), (source,))
        if not path.exists():
            raise _has_left(source)
        segment = Segment.open(path, touch=True)
        segment.unlink()  # both have it now
        return segment

    def _name(self, source: int, to: int) -> Path:
        return self._path.with_name(f"{self._path.name}-from{source}-to{to}")


class _Ring:
    """One direction between two members."""

    def __init__(self, segment: Segment, attendance: Attendance, other: int) -> None:
        self.segment = segment
        self._at = attendance
        self._other = other
        self._words = segment.view(0, PAGE).cast("q")
        self._lines = segment.view(PAGE, RING).cast("q")

    def send(self, flat: Any) -> None:
        sign = calls.sign(calls.SEND, flat.dtype, count(flat))
        begin = self._await(TAKEN, self._words[WRITTEN] + LINE - RING, sign)
        self._lines[begin % RING // 8] = sign
        self._advance(WRITTEN, LINE)
        (how, whole), size = pieces_of(flat), flat.dtype.itemsize
        for low, high in self._pieces(WRITTEN, flat.nbytes):
            begin = self._await(TAKEN, self._words[WRITTEN] + high - low - RING, sign)
            to = how.at(self.segment, PAGE + begin % RING, (high - low) // size)
            how.copy(to, whole[low // size : high // size])
            self._advance(WRITTEN, high - low)

    def receive(self, flat: Any) -> None:
        sign = calls.sign(calls.SEND, flat.dtype, count(flat))
        begin = self._await(WRITTEN, self._words[TAKEN] + LINE, sign)
        theirs = self._lines[begin % RING // 8]
        if theirs != sign:
            raise self._differs(theirs, sign)
        self._advance(TAKEN, LINE)
        (how, whole), size = pieces_of(flat), flat.dtype.itemsize
        for low, high in self._pieces(TAKEN, flat.nbytes):
            begin = self._await(WRITTEN, self._words[TAKEN] + high - low, sign)
            found = how.at(self.segment, PAGE + begin % RING, (high - low) // size)
            how.copy(whole[low // size : high // size], found)
            self._advance(TAKEN, high - low)

    def _pieces(self, mine: int, size: int) -> Iterator[tuple[int, int]]:
        """From which byte to which; none goes over the end of the ring."""
        low = 0
        while low < size:
            high = min(size, low + PIECE, low + RING - self._words[mine] % RING)
            yield low, high
            low = high

    def _await(self, theirs: int, value: int, sign: int) -> int:
        """Waits for the other's counter; PeerLost when it leaves or dies before. Returns where this side stands."""
        words, left = self._words, self._at.boards[self._other].words
        if words[theirs] < value:
            self._at.until(lambda: words[theirs] >= value or bool(left[LEFT]), self._other, sign, (self._other,))
        if words[theirs] < value:
            raise _has_left(self._other)
        return words[WRITTEN if theirs == TAKEN else TAKEN]

    def _advance(self, mine: int, size: int) -> None:
        self._words[mine] += -(-size // LINE) * LINE
        self._at.boards[self._at.rank].ring()

    def _differs(self, theirs: int, mine: int) -> Disagreement:
        return Disagreement(
            f"worker-{self._at.rank} expects a {calls.words(mine)} from worker-{self._other}, which sent a "
            f"{calls.words(theirs)}; both must name the same tensor"
        )


def _has_left(other: int) -> PeerLost:
    return PeerLost(f"worker-{other} has left the group, so nothing comes from it or goes to it", [f"worker-{other}"])
