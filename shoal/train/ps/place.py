"""Where a server stands: its number, address and neighbours, and what it was told. Read once from the environment."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal import contract
from shoal.contract import GONE, Roster
from shoal.errors import BadSpec
from shoal.strategy import Strategy, parse
from shoal.train.world import PORT, SERVER, WORKER, Peer, peers


@dataclass(frozen=True)
class Place:
    """One server of a job. `shared` is its node's folder for shared memory; `outputs` holds its snapshots."""

    index: int
    node: str
    host: str
    port: int
    secret: bytes = field(repr=False)
    shared: Path
    outputs: Path
    strategy: Strategy
    workers: int  # expected at the start
    servers: tuple[Peer, ...]
    roster: Path

    @property
    def name(self) -> str:
        return f"{SERVER}-{self.index}"

    @property
    def next(self) -> Peer | None:
        """The server that keeps a copy of this one's state; None for the only one."""
        return self.servers[(self.index + 1) % len(self.servers)] if len(self.servers) > 1 else None

    @property
    def snapshots(self) -> Path:
        return self.outputs / "snapshots"

    @property
    def spill(self) -> Path:
        """Where state lies that shared memory has no room for: on disk, found again by a process that takes over."""
        mark = hashlib.sha256(b"spill " + self.secret).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"shoal-{mark}-s{self.index}"

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> Place:
        """The place that the environment tells of; BadSpec names the variable that is missing."""
        wanted = (contract.INDEX, contract.ROSTER, contract.SECRET, contract.SHARED, contract.STRATEGY)
        missing = [name for name in wanted if not variables.get(name)]
        if missing:
            raise BadSpec(f"a parameter server needs {', '.join(missing)}; it is started by Shoal, as role 'server'")
        roster = Path(variables[contract.ROSTER])
        members = Roster.from_json(roster.read_text())
        servers, index = peers(members, SERVER), int(variables[contract.INDEX])
        if not 0 <= index < len(servers):
            raise BadSpec(f"{contract.INDEX}={index}, but the roster has {len(servers)} servers; start it again")
        own = servers[index]
        port = int(variables.get(contract.PORT_PREFIX + PORT.upper(), 0)) or own.port
        return cls(
            index=index,
            node=own.node,
            host=own.host,
            port=port,
            secret=variables[contract.SECRET].encode(),
            shared=Path(variables[contract.SHARED]),
            outputs=Path(variables.get(contract.OUTPUTS, "outputs")),
            strategy=parse(variables[contract.STRATEGY]),
            workers=int(variables.get(contract.SIZE) or len(members.role(WORKER))),
            servers=servers,
            roster=roster,
        )


def lost_workers(roster: Path) -> frozenset[int]:
    """The workers that the roster says are gone for good. Empty while it is being rewritten."""
    try:
        members = Roster.from_json(roster.read_text())
    except (OSError, ValueError, KeyError, TypeError):
        return frozenset()
    return frozenset(member.index for member in members.role(WORKER) if member.state == GONE)
