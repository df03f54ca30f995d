"""How fast one job's lines get from its process to the server's disk, and that every one arrives once, in order.

From the time of the first line to the moment the last byte lies in the server's log. What arrived is compared byte by
byte with what was written.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from shoal._lib import frames
from shoal._lib.clock import Deadline
from shoal._lib.segments import Segments
from shoal.bench.figure import Figure, Target
from shoal.bench.meters import MB
from shoal.bench.site import SCRIPTS, Site, site
from shoal.client.jobs import Job
from shoal.errors import ShoalError

MEGABYTES = 320
LIMIT = 180.0  # seconds
_LOOK = 0.02  # seconds
_STREAM = "worker-0"


def log_shipping() -> list[Figure]:
    with site() as running:
        script = running.lay_out("flood.py")
        argv = [sys.executable, str(script), str(MEGABYTES)]
        job = running.command(argv, name="flood", log_limit="1GiB")
        stream = running.home.logs / job.id / "1" / _STREAM
        last = _last_growth(running, job, stream)
        first = _check(stream)
    rate = MEGABYTES * 1_000_000 / MB / (last - first)
    note = f"{MEGABYTES} MB in {last - first:.1f} s, every line once and in order"
    return [Figure("logs.ship", rate, Target("≥", 30, "MB/s"), note=note)]


def _last_growth(running: Site, job: Job, stream: Path) -> float:
    """When the stream grew for the last time before the job ended, in seconds since the epoch."""
    deadline, looked = Deadline(LIMIT), 0.0
    size, grew = 0, 0.0
    while not job.ended:
        if deadline.over():
            raise ShoalError(f"after {LIMIT:g} s the job that writes {MEGABYTES} MB is still {job.state}")
        now = time.time()
        if (found := _size(stream)) != size:
            size, grew = found, now
        elif now - looked > 0.5:
            looked = now
            job.refresh()
        time.sleep(_LOOK)
    if job.state != "succeeded":
        raise ShoalError(f"the job that writes lines {job.state}: {job.message}")
    return grew


def _size(stream: Path) -> int:
    return sum(file.stat().st_size for file in stream.iterdir()) if stream.exists() else 0


def _check(stream: Path) -> float:
    """The time of the first line, once all of them are found to be there."""
    first, found = 0.0, hashlib.sha256()
    for at_us, payload in _frames(stream):
        first = first or at_us / 1e6
        found.update(payload)
    expected = hashlib.sha256()
    for block in _content():
        expected.update(block)
    if found.digest() != expected.digest():
        gaps = Segments(stream, writer=False).gaps
        raise ShoalError(f"what the server has is not what was written; dropped parts: {gaps or 'none'}")
    return first


def _frames(stream: Path) -> Iterator[tuple[int, bytes]]:
    segments = Segments(stream, writer=False)
    at = 0
    while True:
        at, data = segments.read(at, 4 << 20)
        if not data:
            return
        yield from frames.decode(data)
        at += len(data)


def _content() -> Iterator[bytes]:
    """The same bytes as the script wrote, from the script itself."""
    spec = importlib.util.spec_from_file_location("flood", SCRIPTS / "flood.py")
    assert spec is not None and spec.loader is not None
    flood = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(flood)
    blocks: Iterator[bytes] = flood.content(MEGABYTES)
    return blocks
