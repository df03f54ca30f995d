"""What a roster says to all of its members alike, counted once: a gang of ten thousand asks ten thousand times."""

from __future__ import annotations

import weakref
from collections import Counter
from functools import cached_property

from shoal.contract import Member, Roster

WORKER = "worker"


class Peers:
    """The workers of a roster in the order of their ranks, their nodes, and whether anyone is on another machine."""

    def __init__(self, roster: Roster) -> None:
        self.roles: dict[str, list[Member]] = {}
        for member in sorted(roster.members, key=lambda one: one.index):
            self.roles.setdefault(member.role, []).append(member)
        self.workers = self.roles.get(WORKER, [])
        self.workers_on = Counter(worker.node for worker in self.workers)
        # Nodes count in the order of the first worker on each; the counter keeps the order of first sight.
        self.node_number = {node: number for number, node in enumerate(self.workers_on)}

    @cached_property
    def on_one_machine(self) -> bool:
        """All addresses are loopback ones."""
        return all(_is_loopback(member.address) for members in self.roles.values() for member in members)


_known: dict[int, tuple[weakref.ref[Roster], Peers]] = {}


def peers(roster: Roster) -> Peers:
    """The same roster object is counted once; it is a frozen value, so what was counted stays true."""
    number = id(roster)
    known = _known.get(number)
    if known is not None and known[0]() is roster:
        return known[1]
    counted = Peers(roster)
    _known[number] = (weakref.ref(roster, lambda _: _known.pop(number, None)), counted)
    return counted


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("::1", "localhost")
