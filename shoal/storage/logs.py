"""The server's copy of every rank's log, joined from the pieces shepherds send.

A piece says at which offset of its stream it begins: what is already there is skipped, what does not join on is
refused with the offset to send from, so that nothing is lost and nothing is there twice however often a shepherd
repeats itself. Each stream keeps a head and a tail within the limit. `views` shows the lines.
"""

from __future__ import annotations

import re
import shutil
from collections import OrderedDict
from collections.abc import Collection, Iterator
from pathlib import Path
from threading import Lock

from shoal import errors
from shoal._lib.segments import SEGMENT_BYTES, Segments
from shoal.storage.sieve import Finder
from shoal.storage.views import Batch, Tail, natural

LIMIT_BYTES = 256 * 1024 * 1024
_OPEN_FILES = 256  # handles kept for streams that are being written
_KNOWN_STREAMS = 4096  # whose ends are remembered, about 1 KiB each
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

_Key = tuple[str, int, str]


class LogStore:
    """Logs under `root`/<job>/<attempt>/<stream>/. The only writer there; any thread may call, any time.

    Appends to different streams run side by side. Reading takes no handle for longer than one read.
    """

    def __init__(self, root: str | Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._root = Path(root)
        self._limit = limit_bytes
        self._lock = Lock()  # of the tables below; never held while the disk works
        self._streams: OrderedDict[_Key, _Stream] = OrderedDict()
        self._writing: OrderedDict[_Key, Segments] = OrderedDict()
        self._versions: OrderedDict[str, int] = OrderedDict()  # of the jobs written to last
        self._appends = 0
        self._births = 0

    @property
    def births(self) -> int:
        """Grows whenever a new stream begins."""
        return self._births

    def version(self, job: str) -> int:
        """Grows with every append to the job; asking touches no disk."""
        return self._versions.get(job, 0)

    def append(self, job: str, attempt: int, stream: str, offset: int, data: bytes, limit: int | None = None) -> int:
        """Joins whole frames on at `offset`; returns the stream's end, which is what the sender may forget up to.

        Repeated or overlapping pieces add only what is new; an empty one asks for the end. A piece beyond the end is
        errors.OffsetGap, with the offset expected; what is not whole frames errors.BadChunk. When the disk refuses:
        its OSError, the stream as it was. `limit`: the bytes to keep of the stream, where a job says so.
        """
        key = _key(job, attempt, stream)
        while True:
            known = self._stream(key)
            with known.lock:
                if known.gone:
                    continue
                segments = known.open(self._folder(key), self._limit if limit is None else limit)
                before = segments.end
                end = _join(segments, stream, offset, data)
                if end != before:
                    self._written(key, segments, new=before == 0)
                return end

    def streams(self, job: str) -> list[tuple[int, str]]:
        """(attempt, stream) of everything the job has logged, in order."""
        found = []
        for attempt in _folders(self._root / _name(job)):
            if attempt.name.isascii() and attempt.name.isdigit():
                found += [(int(attempt.name), stream.name) for stream in _folders(attempt)]
        return sorted(found, key=lambda pair: (pair[0], natural(pair[1])))

    def ends(self, job: str, attempt: int, streams: Collection[str] | None = None) -> dict[str, int]:
        """The end of each stream of the attempt that exists, or of those named: where its sender goes on."""
        there = [stream.name for stream in _folders(self._root / _name(job) / str(attempt))]
        wanted = there if streams is None else set(streams).intersection(there)
        return {stream: self.segments(job, attempt, stream).end for stream in wanted}

    def segments(self, job: str, attempt: int, stream: str) -> Segments:
        """The stream's bytes, for reading. Ask again before each look: one that was put away sees nothing new."""
        key = _key(job, attempt, stream)
        while True:
            known = self._stream(key)
            with known.lock:
                if not known.gone:
                    return known.open(self._folder(key))

    def read_lines(
        self,
        job: str,
        streams: Collection[str] | None = None,
        since_us: int | None = None,
        tail: int | None = None,
        grep: Finder | None = None,
        cursor: str | None = None,
        attempt: int | None = None,
    ) -> Iterator[Batch]:
        """What the job has logged so far, merged in the order of time, attempt after attempt.

        `streams` names the ranks (else all, without samples), `since_us` begins there, `tail` gives the last lines
        that `grep` matches, `cursor` goes on behind an earlier batch (and then `tail` means nothing).
        """
        view = self.follow(job, streams, since_us, tail, grep, cursor, attempt)
        while batch := view.poll():
            yield batch

    def follow(
        self,
        job: str,
        streams: Collection[str] | None = None,
        since_us: int | None = None,
        tail: int | None = None,
        grep: Finder | None = None,
        cursor: str | None = None,
        attempt: int | None = None,
    ) -> Tail:
        """The same view, to be polled for what comes after; `tail=0` begins with what is logged from now on."""
        return Tail(
            self,
            _name(job),
            streams=streams,
            since_us=since_us,
            tail=tail,
            grep=grep,
            cursor=cursor,
            attempt=attempt,
        )

    def drop(self, job: str) -> None:
        """Deletes all logs of a job that nothing writes to any more. Harmless twice."""
        folder = self._root / _name(job)
        with self._lock:
            keys = [key for key in self._streams if key[0] == job]
            dropped = [self._streams.pop(key) for key in keys]
            for key in keys:
                self._writing.pop(key, None)
            self._versions.pop(job, None)
        for stream in dropped:
            with stream.lock:
                stream.put_away()
        if folder.exists():
            shutil.rmtree(folder)

    def close(self) -> None:
        """Gives all file handles back. Harmless twice; an append opens again."""
        with self._lock:
            writing = list(self._writing.values())
            self._writing.clear()
        for segments in writing:
            segments.close()

    def _folder(self, key: _Key) -> Path:
        return self._root / key[0] / str(key[1]) / key[2]

    def _stream(self, key: _Key) -> _Stream:
        with self._lock:
            known = self._streams.get(key)
            if known is None:
                known = self._streams[key] = _Stream()
                self._put_oldest_away()
            self._streams.move_to_end(key)
            return known

    def _put_oldest_away(self) -> None:
        if len(self._streams) <= _KNOWN_STREAMS:
            return
        key, oldest = next(iter(self._streams.items()))
        if oldest.lock.acquire(blocking=False):
            try:
                oldest.put_away()
            finally:
                oldest.lock.release()
            del self._streams[key]
            self._writing.pop(key, None)

    def _written(self, key: _Key, segments: Segments, new: bool) -> None:
        with self._lock:
            self._appends += 1  # one count for all: a job that was forgotten never comes to a number it had before
            self._versions[key[0]] = self._appends
            self._versions.move_to_end(key[0])
            if len(self._versions) > _KNOWN_STREAMS:
                self._versions.popitem(last=False)
            self._births += new
            self._writing[key] = segments
            self._writing.move_to_end(key)
            oldest = self._writing.popitem(last=False)[1] if len(self._writing) > _OPEN_FILES else None
        if oldest is not None:
            oldest.close()


class _Stream:
    """One stream as the store knows it. `gone` tells a thread that waited for the lock to ask the store again."""

    __slots__ = ("_segments", "gone", "lock")

    def __init__(self) -> None:
        self.lock = Lock()
        self.gone = False
        self._segments: Segments | None = None

    def open(self, folder: Path, limit: int | None = None) -> Segments:
        """Whoever writes says how much is kept; who only reads leaves it as it is."""
        if self._segments is None:
            self._segments = Segments(folder)
        if limit is not None:
            self._segments.keep(
                head=limit // 4,
                tail=limit - limit // 4,
                segment_bytes=max(4096, min(SEGMENT_BYTES, limit // 16)),
            )
        return self._segments

    def put_away(self) -> None:
        self.gone = True
        if self._segments is not None:
            self._segments.close()


def _join(segments: Segments, stream: str, offset: int, data: bytes) -> int:
    end = segments.end
    if offset > end:
        raise errors.OffsetGap(stream, offset, end)
    if offset + len(data) <= end:
        return end
    try:
        return segments.append(memoryview(data)[end - offset :])
    except ValueError:
        problem = f"the piece of log {stream} at {offset} is not whole frames from {end} on; send it again"
        raise errors.BadChunk(problem, expected=end) from None


def _folders(path: Path) -> list[Path]:
    return [each for each in path.iterdir() if each.is_dir()] if path.is_dir() else []


def _key(job: str, attempt: int, stream: str) -> _Key:
    return _name(job), int(attempt), _name(stream)


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise errors.BadSpec(f"{name[:100]!r} cannot name a log; use letters, digits, '.', '_' and '-' only")
    return name
