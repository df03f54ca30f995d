"""What the ranks have written, on this node's disk until the server has it: one stream of frames per name.

Writing never raises and never waits for the server. What the disk has no room for is counted, and one line says how
much is missing once there is room again.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterable, List, Tuple

from shoal._lib import frames
from shoal._lib.quantities import format_size
from shoal._lib.segments import SEGMENT_BYTES, Segments
from shoal.shepherd.journal import Journal

SAMPLES = ".samples"  # ends the name of a stream that holds JSON lines about a member
_LEAST_SEGMENT = 64 * 1024  # bytes


class Stream:
    """One name. Times never go back within it, whatever the machine's clock does."""

    def __init__(self, name: str, folder: Path, limit: int, journal: Journal) -> None:
        self.name = name
        self.folder = folder
        self.journal = journal
        half = max(1, limit // 2)
        size = max(_LEAST_SEGMENT, min(SEGMENT_BYTES, half // 4))
        self._segments = Segments(folder, segment_bytes=size, keep_head=half, keep_tail=half)
        self._lock = threading.Lock()
        self._at_us = 0
        self._lost = 0  # bytes since the disk filled up

    @property
    def end(self) -> int:
        return self._segments.end

    def write(self, lines: bytes) -> None:
        """Adds whole lines."""
        with self._lock:
            self._at_us = max(self._at_us, time.time_ns() // 1000)
            notice = _lost_line(self._lost) if self._lost else b""
            try:
                self._segments.append(frames.pack(self._at_us, notice + lines))
            except OSError as error:
                self._lost += len(lines)
                self.journal.note(f"the spool of {self.name} cannot be written: {error}")
            else:
                self._lost = 0

    def write_json(self, fact: Dict[str, Any]) -> None:
        self.write(json.dumps(fact).encode() + b"\n")

    def read(self, offset: int, limit: int) -> Tuple[int, bytes]:
        return self._segments.read(offset, limit)

    def drop_before(self, offset: int) -> None:
        self._segments.drop_before(offset)


class Spool:
    """The streams of this shepherd's seats."""

    def __init__(self, folder: Path, members: Iterable[str], limit: int, journal: Journal) -> None:
        self._streams: Dict[str, Stream] = {}
        for name in [each for member in members for each in (member, member + SAMPLES)]:
            self._streams[name] = Stream(name, folder / name, limit, journal)

    def __getitem__(self, name: str) -> Stream:
        return self._streams[name]

    def samples(self, member: str) -> Stream:
        return self._streams[member + SAMPLES]

    @property
    def streams(self) -> List[Stream]:
        return list(self._streams.values())


def _lost_line(count: int) -> bytes:
    return f"… {format_size(count)} lost here: the disk of this node was full …\n".encode()
