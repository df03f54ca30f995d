"""What keeps jobs of different users apart on one machine: which way is taken, and what is put around a shepherd.

    user        the shepherd and its ranks run as an operating-system user that stands for the job's owner
    bubblewrap  they run in a view of the file system of their own, with their own process numbers; where the server is
                root, as the owner's operating-system user besides
    none        they run as the server does

Pure: what the machine offers comes in as data (`offers` looks for it), what is to be done goes out as data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from shoal.errors import BadConfig

Mode = Literal["user", "bubblewrap", "none"]
Asked = Literal["auto", "user", "bubblewrap", "none"]
WAYS: tuple[Mode, ...] = ("user", "bubblewrap")

FIRST_UID, LAST_UID = 70_000, 79_999  # above what systems give to people and below what they give to containers
LEAST_PERSON = 1000  # users below are the system's own


@dataclass(frozen=True, slots=True)
class Rules:
    """What the administrator set. Users are found in the table, then by name if so said, then in the range."""

    mode: Asked = "none"
    users: Mapping[str, str | int] = field(default_factory=dict)
    same_name: bool = False
    uids: tuple[int, int] = (FIRST_UID, LAST_UID)
    visible: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Offers:
    """For each way why this machine does not have it, with what to do; empty where it has it.

    `python` is the interpreter for shepherds of other users; empty for the server's own, the only one that is sure to
    have what the server's has: with another, `user` is no more than better than nothing.
    """

    user: str = ""
    bubblewrap: str = ""
    python: str = ""

    def lacks(self, mode: Mode) -> str:
        return "" if mode == "none" else str(getattr(self, mode))


@dataclass(frozen=True, slots=True)
class InForce:
    """How jobs are kept apart, and why so."""

    mode: Mode
    why: str

    @property
    def note(self) -> str:
        """One sentence for people."""
        words = {
            "user": "jobs of each user run as an operating-system user of their own",
            "bubblewrap": "jobs of each user see files and processes of their own only (bubblewrap)",
            "none": "all jobs run as the operating-system user of this server, whoever submitted them",
        }
        return f"{words[self.mode]}: {self.why}"

    @property
    def watches_memory(self) -> bool:
        """Whether shepherds cannot make cgroups there (another user's, or in a view that is read-only) and watch."""
        return self.mode != "none"


@dataclass(frozen=True, slots=True)
class Around:
    """What is put around one shepherd. `uid` without `prefix`: the engine switches; with it: the shepherd, inside."""

    prefix: tuple[str, ...] = ()
    uid: int | None = None
    gid: int | None = None
    python: str = ""  # the shepherd's interpreter; the server's own when empty
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def arguments(self) -> list[str]:
        """For the shepherd itself."""
        return ["--as", f"{self.uid}:{self.gid}"] if self.prefix and self.uid is not None else []

    @property
    def switch(self) -> dict[str, Any]:
        """For subprocess.Popen."""
        if self.prefix or self.uid is None:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Around:
        raw = json.loads(text)
        return cls(**{**raw, "prefix": tuple(raw["prefix"])})


NOTHING = Around()


def choose(asked: Asked, people: int, look: Callable[[], Offers]) -> InForce:
    """The way that is in force. `auto` takes the first that works once there are two users; one has nobody to fear.

    BadConfig for a way that was asked for by name and cannot be had: it is never weakened in silence.
    """
    if asked == "none":
        return InForce("none", "the administrator set isolation.mode to none")
    if asked != "auto":
        lack = look().lacks(asked)
        if lack:
            raise BadConfig(f"isolation.mode = {asked!r} cannot be had here: {lack}; or set the mode to auto")
        return InForce(asked, f"the administrator set isolation.mode to {asked}")
    if people < 2:
        return InForce("none", "there is one user; with a second one they are kept apart")
    return first_of(look())


def first_of(offers: Offers) -> InForce:
    """What `auto` takes among several users."""
    if not offers.user and not offers.python:
        return InForce("user", "this server may switch users")
    if not offers.bubblewrap:
        return InForce("bubblewrap", "bubblewrap is installed and works")
    if not offers.user:
        return InForce(
            "user", f"this server may switch users, though others cannot run its Python, only {offers.python}"
        )
    lacks = "; ".join(f"{mode}: {offers.lacks(mode)}" for mode in WAYS)
    return InForce("none", f"this machine has nothing else ({lacks})")
