"""An engine that starts nothing: it notes what its shepherds would have been told, for simulated ones to play."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from shoal.engine.api import Can, Gang, Liveness
from shoal.home import Home
from shoal.job.nodes import Node

NAME = "idle"
DISTRIBUTION = "shoal_idle-0.dist-info"


class IdleEngine:
    """As many nodes as asked for. A gang lives until it is killed."""

    name = NAME

    def __init__(self, home: Home, *, nodes: int = 1, cpus: float | None = None, **_: object) -> None:
        self.can = Can(pretend=True)
        self._home = home
        self._nodes = tuple(_node(number, cpus or 1.0) for number in range(nodes))
        self._lives: dict[str, Liveness] = {}

    def nodes(self) -> tuple[Node, ...]:
        return self._nodes

    def start(self, gang: Gang) -> str:
        ports = {task.node: {seat.name: seat.ports for seat in task.seats} for task in gang.tasks}
        told = {"key": gang.key, "secret": gang.tasks[0].secret, "ports": ports}
        draft = note_file(self._home).with_suffix(".draft")
        draft.write_text(json.dumps(told))
        draft.replace(note_file(self._home))
        self._lives[gang.key] = Liveness(dict.fromkeys(gang.nodes, "alive"))
        return NAME

    def poll(self, handles: Mapping[str, str]) -> Mapping[str, Liveness]:
        return {key: self._lives.get(key, Liveness()) for key in handles}

    def kill(self, key: str, handle: str = "") -> bool:
        self._lives[key] = Liveness()
        return True

    def clean(self, key: str, handle: str = "") -> bool:
        self._lives.pop(key, None)
        return True

    def leftovers(self) -> tuple[str, ...]:
        return tuple(self._lives)

    def close(self) -> None:
        self._lives.clear()


def _node(number: int, cpus: float) -> Node:
    address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
    return Node(f"node-{number}", address, cpus, 1 << 34, engine=NAME)


def note_file(home: Home) -> Path:
    """What the shepherds of the last gang are told."""
    return home.root / "idle.json"


def publish(folder: Path) -> Path:
    """Makes the engine known, under its name, to every interpreter that has `folder` on its path."""
    about = folder / DISTRIBUTION
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shoal-idle\nVersion: 0\n")
    (about / "entry_points.txt").write_text(f"[shoal.engine]\n{NAME} = {__name__}:IdleEngine\n")
    return folder
