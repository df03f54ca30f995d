"""What the store gives out: frozen values. Rows of the database never leave the package."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shoal.job.gang import RankEnd, RankLife
from shoal.job.nodes import Placement


@dataclass(frozen=True, slots=True)
class JobLine:
    """One line of a list of jobs: what the list shows, without the specification."""

    seq: int
    id: str
    name: str
    state: str
    reason: str
    message: str
    owner: str
    project: str
    framework: str
    strategy: str | None
    workers: int
    attempt: int
    exit_code: int | None
    created_at: float
    started_at: float | None
    ended_at: float | None
    progress: float | None  # of the slowest rank of the current attempt that says so, 0 to 1
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EventRow:
    """One line of a job's history. `seq` grows, also across jobs."""

    seq: int
    at: float
    kind: str
    reason: str
    message: str
    data: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at running a job. Open until `ended_at`: its placement is reserved."""

    key: str
    job_id: str
    number: int
    placement: Placement
    handle: str | None
    created_at: float
    complete_at: float | None
    ended_at: float | None
    reason: str | None
    message: str
    exit_code: int | None
    roster_version: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Shepherd:
    """A shepherd that has joined. `ports` is {member: {name: port}}; `last_event` the number of its last rank event."""

    node: str
    address: str
    ports: dict[str, dict[str, int]]
    pid: int | None
    joined_at: float
    last_seen: float
    done_at: float | None
    last_event: int
    host: str = ""


@dataclass(frozen=True, slots=True)
class RankRow:
    """One process of a gang, as its shepherd last told."""

    name: str
    role: str
    index: int
    slot: int
    node: str
    local: int
    state: str = "waiting"
    incarnation: int = 0
    pid: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    oom: bool = False
    failed_start: bool = False
    message: str = ""
    tail: str = ""
    progress: dict[str, Any] = field(default_factory=dict)
    started_at: float | None = None
    ended_at: float | None = None
    progress_at: float | None = None

    def life(self) -> RankLife:
        """What the rules of the roles judge by."""
        end = None
        if self.state in ("ended", "gone"):
            end = RankEnd(self.exit_code, self.signal, self.oom, self.failed_start, self.message, self.tail)
        return RankLife(self.name, self.role, self.node, self.state, self.incarnation, end)


@dataclass(frozen=True, slots=True)
class InputRow:
    """One input as an attempt was given it. `mixed`: not all of its nodes were given the same."""

    digest: str
    files: int
    bytes: int
    mixed: bool = False


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to act under `name` until `until` (database clock). A later holder has a larger token."""

    name: str
    holder: str
    token: int
    until: float


@dataclass(frozen=True, slots=True)
class User:
    name: str
    admin: bool
    password_hash: str | None
    created_at: float


@dataclass(frozen=True, slots=True)
class Token:
    """A user's token, without its secret; `admin` is the user's."""

    id: str
    user: str
    admin: bool
    secret_hash: str
    label: str
    created_at: float
    expires_at: float | None


@dataclass(frozen=True, slots=True)
class Webhook:
    owner: str
    url: str
    secret: str
    kinds: tuple[str, ...]
    created_at: float


@dataclass(frozen=True, slots=True)
class Delivery:
    """One alarm on its way. Delivered when `delivered_at` is set; given up when neither that nor `next_at` is."""

    id: int
    owner: str
    kind: str
    payload: dict[str, Any]
    created_at: float
    tries: int
    next_at: float | None
    delivered_at: float | None
    status: int | None
    error: str | None
    tried_at: float | None
