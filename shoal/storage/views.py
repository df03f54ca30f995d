"""A job's logs as people read them: the lines of several streams in the order of time, from a place one can return to.

Streams are merged frame by frame: always the frame with the earliest time among the next ones of all streams, attempt
after attempt. The order therefore depends on the positions alone, and a cursor, which is nothing but the positions,
resumes without a line lost or doubled. Where the bytes are is the business of `logs`.
"""

from __future__ import annotations

import base64
import binascii
import heapq
import json
import zlib
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from shoal import errors
from shoal._lib import frames
from shoal._lib.quantities import format_size
from shoal._lib.segments import Segments
from shoal.storage.sieve import Finder, SlowPattern

SAMPLES = ".samples"  # ending of the streams that hold JSON lines, shown only when named
_BATCH_BYTES = 256 * 1024
_BATCH_LINES = 10_000
_READ_BYTES = 1024 * 1024  # per stream, less when there are many
_READ_TOTAL = 32 * 1024 * 1024
_MAX_CURSOR = 8 * 1024 * 1024  # bytes once unpacked

Line = tuple[str, int, str]  # stream, µs since the epoch, text without its newline


@dataclass(frozen=True, slots=True)
class Batch:
    """Some lines, and the cursor behind them. No lines: the search went on and found none yet."""

    lines: list[Line]
    cursor: str


class Source(Protocol):
    """What a view needs of the store of logs."""

    @property
    def births(self) -> int:
        """Grows whenever a new stream begins, whatever the job."""
        ...

    def version(self, job: str) -> int:
        """Grows with every append to the job; asking costs nothing."""
        ...

    def streams(self, job: str) -> list[tuple[int, str]]: ...

    def segments(self, job: str, attempt: int, stream: str) -> Segments: ...


class Tail:
    """Follows a job's logs: `poll()` gives what has come since. For one thread at a time; holds no file open."""

    def __init__(
        self,
        source: Source,
        job: str,
        *,
        streams: Collection[str] | None = None,
        since_us: int | None = None,
        tail: int | None = None,
        grep: Finder | None = None,
        cursor: str | None = None,
        attempt: int | None = None,
    ) -> None:
        self._source = source
        self._job = job
        self._names = None if streams is None else frozenset(streams)
        self._since_us = since_us
        self._grep = grep
        self._attempt = attempt
        self._positions = {} if cursor is None else unpack_cursor(cursor)
        self._feeds: dict[tuple[int, str], _Feed] = {}
        self._births = -1
        self._seen = -1
        self._meet()
        if tail is not None and cursor is None:
            _wind_forward(list(self._feeds.values()), tail, grep)

    @property
    def searches(self) -> bool:
        """Whether a poll may take seconds, because every line is looked at."""
        return self._grep is not None

    @property
    def cursor(self) -> str:
        """Where the next poll goes on."""
        return pack_cursor({key: (feed.position, feed.skip) for key, feed in self._feeds.items()} | self._unmet())

    def poll(self) -> Batch | None:
        """The next lines, bounded in number; None when there is nothing new. Never waits."""
        version = self._source.version(self._job)
        if version == self._seen:
            return None
        self._meet()
        amount = max(frames.MAX_FRAME, min(_READ_BYTES, _READ_TOTAL // max(1, len(self._feeds))))
        heap = [feed.turn() for feed in self._feeds.values() if feed.ready(amount)]
        lines, taken = self._merge(heap, amount)
        if not heap:
            self._seen = version
        return Batch(lines, self.cursor) if taken else None

    def _merge(self, heap: list[_Turn], amount: int) -> tuple[list[Line], int]:
        lines: list[Line] = []
        notices: list[int] = []
        taken = 0
        heapq.heapify(heap)
        while heap and taken < _BATCH_BYTES and len(lines) < _BATCH_LINES:
            feed = heap[0].feed
            taken += feed.take(lines, notices)
            if feed.ready(amount):
                heapq.heapreplace(heap, feed.turn())
            else:
                heapq.heappop(heap)
        return (lines if self._grep is None else self._sift(self._grep, lines, notices)), taken

    def _sift(self, grep: Finder, lines: list[Line], notices: list[int]) -> list[Line]:
        """The lines that match, and our own; a pattern that takes too long says so once and then finds nothing."""
        try:
            found = {*grep([text for _, _, text in lines]), *notices}
        except SlowPattern as slow:
            self._grep = _find_nothing
            return [(*lines[0][:2], f"… nothing is shown from here on: {slow.message} …")] if lines else []
        return [line for number, line in enumerate(lines) if number in found]

    def _meet(self) -> None:
        """Takes in the streams that have begun since the last look."""
        births = self._source.births
        if births == self._births:
            return
        self._births = births
        for key in self._source.streams(self._job):
            if key not in self._feeds and self._wanted(*key):
                self._feeds[key] = self._feed(*key)

    def _wanted(self, attempt: int, stream: str) -> bool:
        if self._attempt is not None and attempt != self._attempt:
            return False
        return not stream.endswith(SAMPLES) if self._names is None else stream in self._names

    def _feed(self, attempt: int, stream: str) -> _Feed:
        feed = _Feed(self._source, self._job, attempt, stream)
        place = self._positions.get((attempt, stream))
        if place is not None:
            feed.position, feed.skip = place
        elif self._since_us is not None:
            feed.position = _first_since(feed.segments(), self._since_us)
        return feed

    def _unmet(self) -> dict[tuple[int, str], tuple[int, int]]:
        return {key: place for key, place in self._positions.items() if key not in self._feeds}


class _Turn(NamedTuple):
    """Whose frame comes next: the smallest. No two have the same attempt and stream, so feeds are never compared."""

    attempt: int
    at_us: int
    stream: tuple[str, int, str]
    feed: _Feed


class _Feed:
    """One stream being read: where it stands, and the frames read ahead."""

    __slots__ = ("_frames", "_head", "_job", "_order", "_source", "attempt", "position", "skip", "stream")

    def __init__(self, source: Source, job: str, attempt: int, stream: str) -> None:
        self._source = source
        self._job = job
        self.attempt = attempt
        self.stream = stream
        self.position = 0
        self.skip = 0  # lines of the next frame that are not wanted
        self._order = natural(stream)
        self._frames: Iterator[tuple[int, bytes]] = iter(())
        self._head: tuple[int, int, bytes] | None = None  # dropped before it, time, payload

    def segments(self) -> Segments:
        return self._source.segments(self._job, self.attempt, self.stream)

    def turn(self) -> _Turn:
        assert self._head is not None
        return _Turn(self.attempt, self._head[1], self._order, self)

    def ready(self, amount: int) -> bool:
        """Whether there is a next frame; reads ahead when the last read is used up."""
        if self._head is None:
            frame = next(self._frames, None)
            self._head = self._refill(amount) if frame is None else (0, *frame)
        return self._head is not None

    def _refill(self, amount: int) -> tuple[int, int, bytes] | None:
        segments = self.segments()
        if segments.end <= self.position:
            return None
        real, data = segments.read(self.position, amount)
        self._frames = frames.decode(data)
        frame = next(self._frames, None)
        return None if frame is None else (real - self.position, *frame)

    def take(self, lines: list[Line], notices: list[int]) -> int:
        """Adds the lines of the next frame, and to `notices` the number of one of ours; the bytes it stood for."""
        assert self._head is not None
        dropped, at_us, payload = self._head
        stream = self.stream
        if dropped:
            self.skip = 0  # it counted lines of a frame that is gone
            notices.append(len(lines))
            lines.append((stream, at_us, self._gap_line(dropped)))
        lines.extend([(stream, at_us, text) for text in _texts(payload)[self.skip :]])
        self._head, self.skip = None, 0
        self.position += dropped + frames.HEADER + len(payload)
        return len(payload)

    def _gap_line(self, dropped: int) -> str:
        return f"… {format_size(dropped)} dropped here: the log limit of the job was reached …"


def natural(stream: str) -> tuple[str, int, str]:
    """Sorts worker-2 before worker-10."""
    role, _, rest = stream.rpartition("-")
    digits = rest.partition(".")[0]
    return (role, int(digits) if digits.isascii() and digits.isdigit() else -1, rest)


def _texts(payload: bytes) -> list[str]:
    texts = payload.decode("utf-8", "replace").split("\n")
    if not texts[-1]:
        texts.pop()
    return texts


def _first_since(segments: Segments, since_us: int) -> int:
    """The offset of the first frame at or after that time, else the end. Reads a frame per file, then one file."""
    spans = [span for span in segments.spans if span[0] < span[1]]
    after = bisect_left(spans, since_us, key=lambda span: _time_at(segments, span[0]))
    if after == 0:
        return spans[0][0] if spans else segments.end
    for mark in _marks(segments, *spans[after - 1], grep=None):
        if mark.at_us >= since_us:
            return mark.offset
    return spans[after][0] if after < len(spans) else spans[-1][1]


def _time_at(segments: Segments, offset: int) -> int:
    return next((at_us for at_us, _ in frames.decode(segments.read(offset, 1)[1])), 0)


class _Mark(NamedTuple):
    """A frame seen in passing: enough to count lines without keeping them."""

    at_us: int
    offset: int
    lines: int  # that the reader wants to see


def _find_nothing(lines: Sequence[str]) -> Sequence[int]:
    return ()


def _marks(segments: Segments, start: int, end: int, grep: Finder | None) -> Iterator[_Mark]:
    while start < end:
        start, data = segments.read(start, _READ_BYTES)
        if not data or start >= end:
            return
        read = list(frames.decode(data))
        for (at_us, payload), count in zip(read, _counts([payload for _, payload in read], grep), strict=True):
            yield _Mark(at_us, start, count)
            start += frames.HEADER + len(payload)


def _counts(payloads: list[bytes], grep: Finder | None) -> list[int]:
    """How many lines of each the reader wants to see; the pattern is asked once for all of them."""
    if grep is None:
        return [payload.count(b"\n") + (not payload.endswith(b"\n")) for payload in payloads]
    texts = [(number, text) for number, payload in enumerate(payloads) for text in _texts(payload)]
    counts = [0] * len(payloads)
    for hit in grep([text for _, text in texts]):
        counts[texts[hit][0]] += 1
    return counts


def _hits(payload: bytes, grep: Finder | None) -> Sequence[int]:
    texts = _texts(payload)
    return range(len(texts)) if grep is None else grep(texts)


def _last_marks(segments: Segments, floor: int, want: int, grep: Finder | None) -> list[_Mark]:
    """The frames that hold the last `want` lines at or after `floor`; files are read from the last one backwards."""
    found: list[_Mark] = []
    have = 0
    for start, end in reversed(segments.spans):
        if have >= want or end <= floor:
            break
        marks = [mark for mark in _marks(segments, max(start, floor), end, grep) if mark.lines]
        have += sum(mark.lines for mark in marks)
        found = marks + found
    return found


def _wind_forward(feeds: list[_Feed], want: int, grep: Finder | None) -> None:
    """Moves the feeds to where the last `want` lines of the merged view begin."""
    runs = []
    for feed in feeds:
        segments = feed.segments()
        end = segments.end
        runs.append([(feed, mark) for mark in _last_marks(segments, feed.position, want, grep) if mark.offset < end])
        feed.position, feed.skip = max(feed.position, end), 0
    merged = list(heapq.merge(*runs, key=lambda pair: (pair[0].attempt, pair[1].at_us, natural(pair[0].stream))))
    while merged and want > 0:
        feed, mark = merged.pop()
        feed.position = mark.offset
        if mark.lines > want:
            feed.skip = _unwanted(feed.segments(), mark.offset, want, grep)
        want -= mark.lines


def _unwanted(segments: Segments, offset: int, want: int, grep: Finder | None) -> int:
    """How many lines of the frame there come before its last `want` hits."""
    real, data = segments.read(offset, 1)
    for _, payload in frames.decode(data if real == offset else b""):
        return _hits(payload, grep)[-want]
    return 0  # dropped meanwhile


def pack_cursor(positions: dict[tuple[int, str], tuple[int, int]]) -> str:
    """Positions as one opaque word that is safe in a URL and a header."""
    rows = [[attempt, stream, *place] for (attempt, stream), place in positions.items()]
    raw = zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 1)
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def unpack_cursor(cursor: str) -> dict[tuple[int, str], tuple[int, int]]:
    """What `pack_cursor` packed; errors.BadSpec for anything else."""
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        rows = json.loads(zlib.decompressobj().decompress(raw, _MAX_CURSOR))
        return {(_count(attempt), str(stream)): (_count(at), _count(skip)) for attempt, stream, at, skip in rows}
    except (binascii.Error, zlib.error, ValueError, TypeError):
        raise errors.BadSpec(f"{cursor[:60]!r} is not a cursor of these logs; read without one to start over") from None


def _count(value: object) -> int:
    if isinstance(value, int) and value >= 0:
        return value
    raise ValueError("not a count")
