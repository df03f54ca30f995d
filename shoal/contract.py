"""What a process is told: the words between server and shepherd, and the environment a rank wakes up in.

Writer and reader use this one file. Standard library only, Python 3.9 or newer, because the shepherd carries it to
any node and a rank may run in any interpreter.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Dict, List, Optional, Sequence

PROTOCOL = 1

# Every process of a gang carries this variable: what still has it after the shepherd is gone is swept up.
GANG = "SHOAL_GANG"
JOB = "SHOAL_JOB"
ATTEMPT = "SHOAL_ATTEMPT"
START = "SHOAL_START"  # how often this process was started before, within the attempt
ROLE = "SHOAL_ROLE"
INDEX = "SHOAL_INDEX"  # among the processes of the role
RANK = "SHOAL_RANK"  # workers only
SIZE = "SHOAL_SIZE"  # number of workers
MEMBER = "SHOAL_MEMBER"  # worker-1, server-0
NODE = "SHOAL_NODE"
ROSTER = "SHOAL_ROSTER"  # path of the roster file; rewritten in place when the roster changes
HOSTFILE = "SHOAL_HOSTFILE"  # path of the same as a list of nodes, in the form that mpirun reads
INPUTS = "SHOAL_INPUTS"  # folder that holds one folder per input
OUTPUTS = "SHOAL_OUTPUTS"  # folder whose content goes to `outputs:`
STRATEGY = "SHOAL_STRATEGY"
SHARED = "SHOAL_SHARED"  # the attempt's shared-memory folder on this node
PORT_PREFIX = "SHOAL_PORT_"  # SHOAL_PORT_<NAME>: a port reserved for this process
GATE = "SHOAL_GATE"  # a port beside a framework's meeting point, open from the moment that can be reached
SECRET = "SHOAL_SECRET"  # what peers inside the gang prove to each other

# What a rank inherits from the machine; everything else is declared.
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME", "TMPDIR")

AUTH_SCHEME = "Gang"
GONE = "gone"  # the state of a member that will not come back


def gang_secret(server_secret: str, key: str) -> str:
    """The secret of one attempt: derived, so that nothing needs to be stored and a repeated start gives the same."""
    import hmac  # not needed by a shepherd, whose start every job waits for

    return hmac.new(server_secret.encode(), key.encode(), "sha256").hexdigest()


def stacks_start(member: str) -> str:
    """How the lines of a rank's log begin that say where it stands."""
    return f"[stacks of {member}] "


def stacks_end(mark: str) -> str:
    """What the last of them says, to who asked under this mark."""
    return f"end of {mark}"


@dataclass(frozen=True)
class Seat:
    """One process a shepherd will start, before anyone knows its peers: its name and the ports to reserve for it."""

    name: str
    role: str
    ports: List[str] = field(default_factory=list)


@dataclass(frozen=True)
class Task:
    """All a shepherd is told when it is started; kept in a file of mode 0600."""

    server: str
    fingerprint: Optional[str]  # sha256 of the server's certificate, when it is self-signed
    key: str
    secret: str
    node: str
    host: str  # the address peers reach this node at
    folder: str  # what the gang's shepherds may write: lock, spool, roster, shared memory note
    work: str  # where the ranks start
    seats: List[Seat]
    log_limit: int  # bytes kept per rank, head and tail
    note: Optional[str] = None  # where the server leaves its address, when this node sees the server's home
    library: str = ""  # a folder of this node that holds `shoal` for the ranks to import, and nothing else
    cache: str = ""  # a folder of this node for what is worth keeping between jobs; empty for the user's cache folder

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        raw = json.loads(text)
        return cls(**{**raw, "seats": [Seat(**seat) for seat in raw["seats"]]})


@dataclass(frozen=True)
class Member:
    """One process of the gang, as its peers know it."""

    name: str
    role: str
    index: int
    node: str
    address: str
    ports: Dict[str, int]
    local: int = 0  # its number among the processes of its role on its node
    slot: int = 0  # which of the role's slots (a worker with four GPUs is one slot, four members)
    state: str = "up"


@dataclass(frozen=True)
class Roster:
    """Who is in the gang. The version grows when ranks leave or come back."""

    version: int
    key: str
    members: List[Member]

    def role(self, name: str) -> List[Member]:
        return [member for member in self.members if member.role == name]

    def find(self, name: str) -> Member:
        return next(member for member in self.members if member.name == name)

    def to_json(self) -> str:
        return json.dumps({"version": self.version, "key": self.key, "members": [asdict(m) for m in self.members]})

    @classmethod
    def from_json(cls, text: str) -> Roster:
        raw = json.loads(text)
        return cls(raw["version"], raw["key"], [Member(**member) for member in raw["members"]])


@dataclass(frozen=True)
class Environment:
    """What the ranks run in, as the node is to find it or build it. Which fields say something depends on `kind`."""

    kind: str  # preset, file, path or image
    name: str  # as the job wrote it
    path: str = ""  # file: in the work folder; path: of an interpreter or of a prefix
    lines: Sequence[str] = ()  # preset: as pip reads them
    bare: Sequence[str] = ()  # preset: installed without their dependencies
    pythons: Sequence[str] = ()  # preset: versions that will do, such as 3.11; empty for any
    oldest: str = ""  # path: the first version that will do, such as 3.10; empty for any
    extras: Sequence[str] = ()  # file: optional dependencies of a pyproject
    image: str = ""
    auth: str = ""  # image: the node's file with the registry's credentials
    settings: Dict[str, str] = field(default_factory=dict)  # what pip is told by variables: PIP_*, proxies
    room: int = 0  # bytes that built environments may take on the node; 0 for no bound

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Dict[str, Any]) -> Environment:
        """Lenient: a newer server may say more than we know."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in raw.items() if name in known})


@dataclass(frozen=True)
class Process:
    """One rank to start: the whole command and environment, and the limits to put around it."""

    name: str
    argv: List[str]
    env: Dict[str, str]
    memory: Optional[int] = None  # bytes
    cpu: Optional[float] = None  # cores; a weight unless cpu_quota
    cpu_quota: bool = False
    session: bool = False  # leads a session of its own, not only a process group

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)
