"""One stream of frames on disk, as files that begin and end at frame boundaries.

Each file is named for the offset of its first byte, so names and sizes say everything: where the stream starts and
ends, and which part of the middle is gone. A stream may keep only a head and a tail: whole files behind the head are
deleted, offsets never change. One writer, many readers, also in other processes; nothing but the end of the last file
can be torn by a crash, and the writer cuts that off when it opens.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from itertools import islice
from pathlib import Path
from threading import RLock
from typing import List, Optional, Set, Tuple, Union

from shoal._lib import frames

SEGMENT_BYTES = 4 * 1024 * 1024
_NAME = re.compile(r"(\d{20})\.seg")


class Segments:
    """The stream in `folder`. Safe to use from several threads; `close()` gives the handle back, the next use reopens.

    `keep_head` bytes at the beginning are never dropped; behind them at most `keep_tail` bytes are kept (None: all).
    With `writer=False` nothing on disk is changed and every question looks at the disk again.
    """

    def __init__(
        self,
        folder: Union[str, Path],
        *,
        segment_bytes: int = SEGMENT_BYTES,
        keep_head: Optional[int] = None,
        keep_tail: Optional[int] = None,
        writer: bool = True,
    ) -> None:
        self._folder = Path(folder)
        self._segment_bytes = segment_bytes
        self._keep_head = keep_head or 0
        self._keep_tail = keep_tail
        self._writer = writer
        self._lock = RLock()
        self._starts: List[int] = []
        self._sizes: List[int] = []
        self._handle: Optional[int] = None  # of the last file, while it is being written
        self._dirty: Set[int] = set()  # starts of the files written since the last sync
        if writer:
            self._look()
            self._cut_torn_end()

    def keep(self, head: int, tail: int, segment_bytes: int) -> None:
        """Sets how much is kept from the next append on."""
        with self._lock:
            self._keep_head, self._keep_tail, self._segment_bytes = head, tail, segment_bytes

    @property
    def start(self) -> int:
        """The first kept offset."""
        with self._lock:
            self._look_again()
            return self._starts[0] if self._starts else 0

    @property
    def end(self) -> int:
        """The offset the next append will have. A reader in another process pays a scan of the last file for it."""
        with self._lock:
            self._look_again()
            if not self._writer and self._starts:
                return self._starts[-1] + self._whole_size()
            return self._end()

    @property
    def spans(self) -> List[Tuple[int, int]]:
        """(start, end) of each kept file, in order."""
        with self._lock:
            self._look_again()
            return [(start, start + size) for start, size in zip(self._starts, self._sizes)]

    @property
    def gaps(self) -> List[Tuple[int, int]]:
        """(from, to) of each dropped part between kept ones."""
        kept = [span for span in self.spans if span[0] < span[1]]
        return [(before[1], after[0]) for before, after in zip(kept, islice(kept, 1, None)) if before[1] < after[0]]

    def append(self, data: frames.Buffer) -> int:
        """Adds whole frames, in one write unless a file is full; returns the new end.

        ValueError for anything but whole frames. When the disk refuses: its OSError, and the stream stays as it was.
        """
        if frames.whole(data) != len(data):
            raise ValueError(f"{len(data)} bytes are not whole frames; append what frames.encode made")
        with self._lock:
            files, size = len(self._starts), self._sizes[-1] if self._sizes else 0
            try:
                self._write(memoryview(data))
            except BaseException:
                self._roll_back(files, size)
                raise
            self._drop_middle()
            return self._end()

    def read(self, offset: int, limit: int) -> Tuple[int, bytes]:
        """(real offset, whole frames of one file): at most `limit` bytes, unless the first frame alone is larger.

        A real offset above `offset` (which must be a frame boundary) means that what lies between was dropped.
        No bytes: nothing there yet.
        """
        with self._lock:
            self._look_again()
            for index in range(max(0, bisect_right(self._starts, offset) - 1), len(self._starts)):
                start = self._starts[index]
                at = max(offset, start)
                data = self._load(index, at - start, limit)
                if data:
                    return at, data
            return offset, b""

    def drop_before(self, offset: int) -> None:
        """Deletes the files that lie wholly before `offset`; the last one stays, it holds the end."""
        with self._lock:
            while len(self._starts) > 1 and self._starts[0] + self._sizes[0] <= offset:
                self._forget(0)

    def sync(self) -> None:
        """Returns once everything appended is on the disk."""
        with self._lock:
            for start in sorted(self._dirty.intersection(self._starts)):
                handle = os.open(self._path(start), os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
            self._dirty.clear()

    def close(self) -> None:
        """Gives the file handle back. Harmless twice."""
        with self._lock:
            if self._handle is not None:
                os.close(self._handle)
                self._handle = None

    def _end(self) -> int:
        return self._starts[-1] + self._sizes[-1] if self._starts else 0

    def _path(self, start: int) -> Path:
        return self._folder / f"{start:020d}.seg"

    def _look(self) -> None:
        found = []
        for entry in os.scandir(self._folder) if self._folder.is_dir() else ():
            match = _NAME.fullmatch(entry.name)
            if match:
                found.append((int(match.group(1)), entry))
        found.sort(key=lambda pair: pair[0])
        self._starts, self._sizes = [], []
        for start, entry in found:
            try:
                size = entry.stat().st_size
            except FileNotFoundError:  # the writer, another process, has just dropped it
                continue
            self._starts.append(start)
            self._sizes.append(size)

    def _look_again(self) -> None:
        if not self._writer:
            self._look()

    def _whole_size(self) -> int:
        try:
            return frames.whole(self._path(self._starts[-1]).read_bytes())
        except FileNotFoundError:  # dropped by its writer, another process; the next look finds what came after
            return self._sizes[-1]

    def _cut_torn_end(self) -> None:
        if self._starts and self._sizes[-1]:
            size = self._whole_size()
            if size < self._sizes[-1]:
                os.truncate(self._path(self._starts[-1]), size)
                self._sizes[-1] = size

    def _load(self, index: int, position: int, limit: int) -> bytes:
        left = self._sizes[index] - position
        if left <= 0:
            return b""
        if self._handle is not None and index == len(self._starts) - 1:
            return _whole_frames(self._handle, position, min(limit, left), left)
        try:
            handle = os.open(self._path(self._starts[index]), os.O_RDONLY)
        except FileNotFoundError:  # dropped since we looked: the caller sees it as the gap it is
            return b""
        try:
            return _whole_frames(handle, position, min(limit, left), left)
        finally:
            os.close(handle)

    def _write(self, view: memoryview) -> None:
        while view:
            taken = self._fitting(view)
            if taken == 0 and (not self._starts or self._sizes[-1]):
                self._begin_file(self._end())
                continue
            taken = taken or frames.first(view)
            _write_at(self._last_file(), view[:taken], self._sizes[-1])
            self._sizes[-1] += taken
            self._dirty.add(self._starts[-1])
            view = view[taken:]

    def _fitting(self, view: memoryview) -> int:
        if not self._starts:
            return 0
        room = self._segment_bytes - self._sizes[-1]
        before_tail = self._keep_head - self._end()
        if before_tail > 0:
            room = min(room, before_tail)
        return len(view) if len(view) <= room else frames.whole(view, max(0, room))

    def _last_file(self) -> int:
        if self._handle is None:
            self._handle = os.open(self._path(self._starts[-1]), os.O_RDWR)
        return self._handle

    def _begin_file(self, start: int) -> None:
        if not self._starts:  # a folder appears with its first file: looking at an absent stream leaves no trace
            self._folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._path(start), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self.close()
        self._handle = handle
        self._starts.append(start)
        self._sizes.append(0)

    def _roll_back(self, files: int, size: int) -> None:
        self.close()
        while len(self._starts) > files:
            self._forget(len(self._starts) - 1)
        if files:
            self._sizes[-1] = size
            os.truncate(self._path(self._starts[-1]), size)

    def _drop_middle(self) -> None:
        if self._keep_tail is None:
            return
        head = 0
        while head < len(self._starts) and self._starts[head] + self._sizes[head] <= self._keep_head:
            head += 1
        behind = sum(self._sizes[head:])
        while behind > self._keep_tail and len(self._starts) - head > 1:
            behind -= self._forget(head)

    def _forget(self, index: int) -> int:
        start, size = self._starts.pop(index), self._sizes.pop(index)
        self._path(start).unlink(missing_ok=True)
        return size


def _whole_frames(handle: int, position: int, limit: int, left: int) -> bytes:
    data = os.pread(handle, limit, position)
    length = frames.whole(data)
    if length:
        return data[:length]
    need = frames.first(data if len(data) >= frames.HEADER else os.pread(handle, frames.HEADER, position))
    if not limit < need <= left:
        return b""
    data = os.pread(handle, need, position)
    return data if len(data) == need else b""


def _write_at(handle: int, view: memoryview, position: int) -> None:
    while view:
        written = os.pwrite(handle, view, position)
        position += written
        view = view[written:]
