"""5,000 shepherds on one server: how long until the whole gang has joined and knows its roster, and what beating costs.

The shepherds are simulated, each with a connection of its own: join, beat until told to launch, fetch the launch and
the compressed roster, then beat every 10 s. The engine behind is one that starts nothing.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from shoal._lib.clock import Deadline
from shoal.bench.figure import Figure, Target
from shoal.bench.idle import NAME, note_file, publish
from shoal.bench.meters import CpuMeter
from shoal.bench.site import Site, site
from shoal.bench.wire import Connection, host_of, request
from shoal.client.http import BASE
from shoal.contract import AUTH_SCHEME
from shoal.errors import ShoalError

SHEPHERDS = 5_000
BEAT = 10.0  # seconds
BEATING = 30.0  # seconds measured
LIMIT = 240.0  # seconds to join
PORT = 40_000  # what every one of them says it has reserved
HAND_OVER = 60.0  # seconds from submit to the engine


def scale() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        path = publish(Path(folder))
        with site({"engine": NAME, "nodes": SHEPHERDS, "cpus": 1.0}, path=path) as running:
            running.command(["true"], name="scale", workers=SHEPHERDS, resources={"cpu": 1})
            told = _told(running)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                seconds, roster, cores = runner.run(_play(running, told))
    note = f"{SHEPHERDS} shepherds, roster {roster / 1000:.0f} kB packed"
    return [
        Figure("scale.join", 1000 * seconds, Target("<", 60_000, "ms"), note=note),
        Figure("scale.beat", cores, Target("<", 1, "cores"), note=f"each beats every {BEAT:g} s"),
    ]


def _told(running: Site) -> dict[str, Any]:
    """What the engine was handed for the gang."""
    file, deadline = note_file(running.home), Deadline(HAND_OVER)
    while not file.exists():
        if deadline.over():
            raise ShoalError(f"the gang was not handed to its engine within {HAND_OVER:g} s")
        time.sleep(0.02)
    told: dict[str, Any] = json.loads(file.read_text())
    return told


@dataclass
class _Gang:
    host: str
    port: int
    base: str
    headers: dict[str, str]

    def message(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        return request(method, self.base + path, self.headers, b"" if body is None else json.dumps(body).encode())


async def _play(running: Site, told: dict[str, Any]) -> tuple[float, int, float]:
    """(seconds until everyone has its launch and roster, bytes of the roster, cores used while beating)"""
    host, port = host_of(running.api.url)
    headers = {"Host": f"{host}:{port}", "Authorization": f"{AUTH_SCHEME} {told['secret']}", "Accept-Encoding": "gzip"}
    gang = _Gang(host, port, f"{BASE}/gangs/{told['key']}", headers)
    shepherds = [_Shepherd(gang, node, ports) for node, ports in told["ports"].items()]
    began = time.monotonic()
    async with asyncio.timeout(LIMIT):
        rosters = await asyncio.gather(*(shepherd.join() for shepherd in shepherds))
    taken = time.monotonic() - began
    _check_roster(rosters)
    beating = [asyncio.create_task(shepherd.beat_on()) for shepherd in shepherds]
    await asyncio.sleep(BEAT)  # until they are spread over the interval
    before, meter = _beats(shepherds), CpuMeter(running.pid)
    await asyncio.sleep(BEATING)
    cores, beats = meter.cores(), _beats(shepherds) - before
    _check_beats(beats, beating)
    for task in beating:
        task.cancel()
    for shepherd in shepherds:
        shepherd.close()
    return taken, len(rosters[0]), cores


def _beats(shepherds: list[_Shepherd]) -> int:
    return sum(shepherd.beats for shepherd in shepherds)


def _check_roster(rosters: list[bytes]) -> None:
    members = json.loads(gzip.decompress(rosters[0]))["members"]
    if len(members) != SHEPHERDS or len(set(rosters)) != 1:
        raise ShoalError(f"the roster has {len(members)} members, and {len(set(rosters))} kinds of it were sent")


def _check_beats(beats: int, beating: list[asyncio.Task[None]]) -> None:
    """Nobody has failed, and they did beat: a server that answers late would otherwise look idle."""
    for task in beating:
        if task.done():
            task.result()
    due = SHEPHERDS * BEATING / BEAT
    if beats < 0.95 * due:
        raise ShoalError(f"only {beats} of {due:g} beats were answered in {BEATING:g} s")


class _Shepherd:
    """One connection that behaves as a shepherd does."""

    def __init__(self, gang: _Gang, node: str, ports: dict[str, list[str]]) -> None:
        self._gang = gang
        self._node = node
        self._ports = {seat: dict.fromkeys(names, PORT) for seat, names in ports.items()}
        self._seen = 0
        self._connection: Connection | None = None
        self.beats = 0

    async def join(self) -> bytes:
        """Returns the packed roster, once there is one."""
        self._connection = await Connection.open(self._gang.host, self._gang.port)
        about = {"node": self._node, "host": self._node, "address": "127.0.0.1", "pid": 1, "version": "1"}
        await self._ask("POST", "/join", {**about, "ports": self._ports})
        while "launch" not in await self._beat(BEAT):
            pass
        await self._ask("GET", f"/launch?node={self._node}")
        return await self._ask("GET", "/roster")

    async def beat_on(self) -> None:
        """A held poll each 10 s; the first one shorter, so that they do not all come at once."""
        wait = random.uniform(0, BEAT)
        while True:
            await self._beat(wait)
            self.beats += 1
            wait = BEAT

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _beat(self, wait: float) -> list[str]:
        """The kinds of the directives in the answer."""
        body = {"node": self._node, "seen": self._seen, "wait": wait, "ranks": {}}
        directives = json.loads(await self._ask("POST", "/beat", body))["directives"]
        self._seen = max([self._seen, *(one["seq"] for one in directives)])
        return [one["kind"] for one in directives]

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        assert self._connection is not None
        return await self._connection.ask(self._gang.message(method, path, body))
