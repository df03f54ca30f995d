"""A control plane over a real database and an engine without machines; the tests play the shepherds."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shoal._lib import clock, frames
from shoal._lib.ids import short_id
from shoal.contract import gang_secret
from shoal.control import Desk, Gangs, Loop, Parts, User
from shoal.engine.simulated import SimulatedEngine
from shoal.home import Home
from shoal.job.life import JobRecord
from shoal.job.plan import Served
from shoal.storage.blobs import FolderBlobs
from shoal.storage.chunks import Chunks
from shoal.storage.logs import LogStore
from shoal.store import Store

ANN = User("ann")


@dataclass
class World:
    """Everything one server has, without its HTTP."""

    parts: Parts
    desk: Desk
    gangs: Gangs
    loop: Loop
    engine: SimulatedEngine

    def submit(self, **raw: Any) -> JobRecord:
        return self.desk.submit(ANN, {"command": ["true"], **raw}, None, None)[0]

    def round(self) -> None:
        """One round in which everything is due."""
        self.loop._poll_due = self.loop._queue_due = self.loop._sweep_due = clock.Deadline(0)
        self.loop._round()

    def job(self, job: JobRecord) -> JobRecord:
        return self.parts.store.job(job.id)

    def secret(self, key: str) -> str:
        return gang_secret(self.parts.store.server_secret(), key)

    def join_all(self, key: str) -> None:
        for task in self.engine.tasks[key].tasks:
            ports = {seat.name: {port: 1000 + i for i, port in enumerate(seat.ports)} for seat in task.seats}
            self.gangs.join(key, {"node": task.node, "address": task.host, "host": "h", "ports": ports, "pid": 1})

    def told(self, key: str, node: str = "sim-0", after: int = 0) -> list[str]:
        return [directive["kind"] for directive in self.gangs.directives(key, node, after)]

    def end_rank(self, key: str, member: str, n: int, node: str = "sim-0", incarnation: int = 0, **end: Any) -> None:
        event = {"n": n, "member": member, "incarnation": incarnation, "event": "ended", "at": clock.now(), **end}
        self.gangs.ranks(key, {"node": node, "events": [event]})

    def leave(self, key: str) -> None:
        for task in self.engine.tasks[key].tasks:
            self.gangs.done(key, task.node)
        self.engine.see(key, "gone")


def log_batch(stream: str, offset: int, text: bytes, at_us: int = 1) -> bytes:
    packed = zlib.compress(frames.pack(at_us, text), 1)
    return struct.pack(">HQI", len(stream), offset, len(packed)) + stream.encode() + packed


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Any]:
    made: list[World] = []

    def make(**options: Any) -> World:
        home = Home(tmp_path / "home")
        home.create()
        engine = options.pop("engine", None) or SimulatedEngine(**options)
        parts = Parts(
            store=Store.open(f"sqlite:///{home.database}"),
            chunks=Chunks(FolderBlobs(home.blobs)),
            logs=LogStore(home.logs),
            home=home,
            engines={"simulated": engine},
            default_engine="simulated",
            url="http://127.0.0.1:1",
            served=Served(engines=("simulated",)),
        )
        gangs = Gangs(parts)
        world = World(parts, Desk(parts), gangs, Loop(parts, gangs, holder=short_id()), engine)
        made.append(world)
        return world

    yield make
    for world in made:
        world.parts.store.close()


@pytest.fixture
def world(make_world: Any) -> World:
    return make_world()
