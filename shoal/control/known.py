"""What is remembered of one gang between two words of its shepherds; lost at any moment without harm."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property

from shoal.contract import Member, Roster
from shoal.control.goods import Given
from shoal.control.seating import members_of
from shoal.job.life import JobRecord
from shoal.storage.views import SAMPLES
from shoal.store import Attempt


@dataclass
class Known:
    """What is remembered of one gang."""

    attempt: Attempt
    record: JobRecord
    secret: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    newest: dict[str, int] = field(default_factory=dict)  # node, or "" for all → seq of the newest directive
    roster: tuple[Roster, bytes] | None = None
    members: dict[str, list[Member]] = field(default_factory=dict)  # of the roster, by node
    hidden: dict[str, str] | None = None  # words of its commands that are not kept → what is kept in their place
    installed: dict[str, str] = field(default_factory=dict)  # what is installed → the first node that told it
    inputs: dict[str, Given] = field(default_factory=dict)  # what its nodes were last given, by name
    over_at: float | None = None
    ending: float | None = None  # the grace it was told to stop with
    settling: threading.Lock = field(default_factory=threading.Lock)  # held by whoever puts its things away
    noting: threading.Lock = field(default_factory=threading.Lock)  # around `newest`

    def note(self, node: str, seq: int) -> None:
        """Directives come from several threads: the newest is the largest, whoever speaks last."""
        with self.noting:
            self.newest[node] = max(seq, self.newest.get(node, 0))

    @cached_property
    def streams(self) -> frozenset[str]:
        """The logs its shepherds may write."""
        names = [member[0] for member in members_of(self.record, self.attempt.placement)]
        return frozenset(names + [f"{name}{SAMPLES}" for name in names])

    def __post_init__(self) -> None:
        berths = sorted(self.attempt.placement, key=lambda berth: berth.slot.index)
        self.gpus = {(berth.slot.role, berth.slot.index): berth.gpus for berth in berths}
        self.node_gpus: dict[tuple[str, str], tuple[int, ...]] = defaultdict(tuple)
        for berth in berths:
            self.node_gpus[berth.slot.role, berth.node] += berth.gpus
