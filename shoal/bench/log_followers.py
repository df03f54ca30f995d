"""What it costs the server when 200 people follow one live log of 100 lines a second, and how far behind they are.

Every line carries the time it was printed; every follower must see each line once and in order. Counted are the lines
printed once all followers were there.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field

import uvloop

from shoal.bench.figure import Figure, Target
from shoal.bench.meters import CpuMeter
from shoal.bench.site import Site, site
from shoal.bench.wire import Stream, host_of, request
from shoal.client.http import BASE
from shoal.client.jobs import Job
from shoal.errors import ShoalError

FOLLOWERS = 200
LINES_PER_SECOND = 100
SECONDS = 18  # of the job
MEASURED = 10.0  # seconds
LIMIT = 90.0  # seconds


@dataclass
class _Log:
    """What is known of the job's lines, decoded once for all followers."""

    decoded: dict[bytes, tuple[int, int, float]] = field(default_factory=dict)  # event → first, last, time of first
    all_there: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: int = 0
    counted_from: float = float("inf")  # seconds since the epoch
    worst: float = 0.0  # seconds

    def arrive(self) -> None:
        self.arrived += 1
        if self.arrived == FOLLOWERS:
            self.all_there.set()

    def read(self, event: bytes) -> tuple[int, int, float]:
        known = self.decoded.get(event)
        if known is None:
            lines = [text.split() for _, _, text in json.loads(event)["lines"]]
            numbers = [int(number) for number, _ in lines]
            if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
                raise ShoalError(f"lines came out of order: {numbers[:20]}")
            known = self.decoded[event] = numbers[0], numbers[-1], float(lines[0][1])
        return known


class _Follower:
    def __init__(self, log: _Log) -> None:
        self._log = log
        self.next = 0

    def take(self, event: bytes) -> None:
        """One event as it came: perhaps with a chunk's size before it, perhaps a ping or the end."""
        _, found, data = event.partition(b'data: {"lines"')
        if not found:
            return
        first, last, printed = self._log.read(b'{"lines"' + data)
        if first != self.next:
            raise ShoalError(f"a follower got line {first} when {self.next} was next")
        if not self.next:
            self._log.arrive()
        self.next = last + 1
        if printed >= self._log.counted_from:
            self._log.worst = max(self._log.worst, time.time() - printed)


def log_followers() -> list[Figure]:
    with site() as running:
        script = running.lay_out("ticker.py")
        argv = [sys.executable, str(script), str(LINES_PER_SECOND), str(SECONDS)]
        job = running.command(argv, name="ticker")
        next(one for one in job.watch(60) if one.state == "running")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            cores, lag = runner.run(_follow(running, job))
    note = f"{FOLLOWERS} followers, {LINES_PER_SECOND} lines/s"
    return [
        Figure("logs.follow", cores, Target("<", 1, "cores"), note=note),
        Figure("logs.follow.lag", lag * 1000, Target("<", 1000, "ms"), note="the worst line of the worst follower"),
    ]


async def _follow(running: Site, job: Job) -> tuple[float, float]:
    log = _Log()
    followers = [_Follower(log) for _ in range(FOLLOWERS)]
    host, port = host_of(running.api.url)
    headers = {"Host": f"{host}:{port}", "Authorization": f"Bearer {running.api.token}"}
    message = request("GET", f"{BASE}/jobs/{job.id}/logs?follow=1", headers)
    loop = asyncio.get_running_loop()
    streams = [
        (await loop.create_connection(lambda one=follower: Stream(message, one.take), host, port))[1]  # type: ignore[misc]
        for follower in followers
    ]
    await asyncio.wait_for(log.all_there.wait(), LIMIT)
    log.counted_from = time.time()
    meter = CpuMeter(running.pid)
    await asyncio.sleep(MEASURED)
    cores = meter.cores()
    await asyncio.wait_for(asyncio.gather(*(stream.over for stream in streams)), LIMIT)
    missing = [follower.next for follower in followers if follower.next != LINES_PER_SECOND * SECONDS]
    if missing:
        raise ShoalError(f"{len(missing)} followers did not see all lines; one stopped before line {missing[0]}")
    return cores, log.worst
