"""Where this process stands: alone, under torchrun, or in a Shoal job. The environment is read here, nowhere else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal import contract
from shoal.contract import Member, Roster

PORT = "train"  # the name of the port that servers and workers of a job reserve for the library
WORKER, SERVER = "worker", "server"


@dataclass(frozen=True)
class Peer:
    """Another process of the job, as this one reaches it."""

    name: str
    index: int
    node: str  # processes of one node share memory
    host: str
    port: int  # 0 where it does not listen


@dataclass(frozen=True)
class World:
    """Who is here. A world of one has no peers, no servers and no secret."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    source: str = "alone"  # alone, torchrun, shoal
    strategy: str | None = None
    workers: tuple[Peer, ...] = ()
    servers: tuple[Peer, ...] = ()
    secret: bytes = field(default=b"", repr=False)
    shared: Path | None = None  # this node's folder for shared memory; None where there is none
    outputs: Path = Path("outputs")
    roster: Path | None = None  # rewritten when members come and go
    attempt: int = 1
    gang: str = ""  # the key of this attempt among those of all jobs
    starts: int = 0  # how often this worker was started before, within the attempt
    serial: int = 0  # how many runs this process had before: each has names of its own for all that others see
    variables: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def alone(self) -> bool:
        return self.size == 1 and not self.servers

    @property
    def me(self) -> str:
        return f"{WORKER}-{self.rank}"

    @property
    def node(self) -> str:
        return self.workers[self.rank].node if self.workers else "here"

    def is_here(self, peer: Peer) -> bool:
        """Whether memory can be shared with the peer."""
        return self.shared is not None and peer.node == self.node

    @classmethod
    def read(cls, variables: Mapping[str, str] | None = None) -> World:
        """The world that the environment tells of. Under torchrun the peers are not known yet: see `meet`."""
        env = dict(os.environ if variables is None else variables)
        if contract.ROSTER in env and contract.RANK in env:
            return cls._of_job(env)
        if "RANK" in env and "WORLD_SIZE" in env and "MASTER_ADDR" in env:
            return cls(
                rank=int(env["RANK"]),
                size=int(env["WORLD_SIZE"]),
                local_rank=int(env.get("LOCAL_RANK", "0")),
                source="torchrun",
                strategy=env.get(contract.STRATEGY),
                outputs=Path(env.get(contract.OUTPUTS, "outputs")),
                variables=env,
            )
        strategy, outputs = env.get(contract.STRATEGY), Path(env.get(contract.OUTPUTS, "outputs"))
        return cls(strategy=strategy, outputs=outputs, variables=env)

    @classmethod
    def _of_job(cls, env: Mapping[str, str]) -> World:
        path = Path(env[contract.ROSTER])
        roster = Roster.from_json(path.read_text())
        return cls(
            rank=int(env[contract.RANK]),
            size=int(env[contract.SIZE]),
            local_rank=int(env.get("LOCAL_RANK", "0")),
            source="shoal",
            strategy=env.get(contract.STRATEGY),
            workers=peers(roster, WORKER),
            servers=peers(roster, SERVER),
            secret=env.get(contract.SECRET, "").encode(),
            shared=Path(env[contract.SHARED]) if contract.SHARED in env else None,
            outputs=Path(env.get(contract.OUTPUTS, "outputs")),
            roster=path,
            attempt=int(env.get(contract.ATTEMPT, "1")),
            gang=roster.key,
            starts=int(env.get(contract.START, "0")),
            variables=env,
        )


def peers(roster: Roster, role: str) -> tuple[Peer, ...]:
    """The members of a role in order, as peers."""
    return tuple(_peer(member) for member in sorted(roster.role(role), key=lambda one: one.index))


def _peer(member: Member) -> Peer:
    return Peer(member.name, member.index, member.node, member.address, member.ports.get(PORT, 0))
