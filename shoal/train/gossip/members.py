"""Who takes part in a gossip, as one worker knows it. Pure: news goes in and comes out as plain data.

Each start of a worker has a number of its own, larger than all before (its *life*). Whoever notices an end says which
life has ended; a worker that comes back has another, and one that was given up by mistake takes another. A process has
a number too, that of its first life (its *start*): the end of a connection ends the lives of the process it led to, and
none of a later one. News that arrives late or twice changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.train.world import Peer

News = dict[str, Any]


@dataclass
class Members:
    """Ranks, their addresses, their lives, and which of these have ended."""

    me: int
    start: int
    peers: dict[int, Peer]
    life: int = field(init=False)  # the start at first
    version: int = 0  # grows with every change
    _lives: dict[int, int] = field(default_factory=dict)
    _starts: dict[int, int] = field(default_factory=dict)  # of the processes that live these lives
    _ended: dict[int, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self.life = self.start

    def present(self) -> tuple[int, ...]:
        """The ranks that are there, in order; always with `me`."""
        with self._lock:
            return tuple(sorted(rank for rank in self.peers if rank == self.me or self._alive(rank)))

    def _alive(self, rank: int) -> bool:
        return self._lives.get(rank, 0) > self._ended.get(rank, -1)

    def process(self, rank: int) -> int:
        """The start of the latest process heard of; 0 when none was."""
        with self._lock:
            return self.start if rank == self.me else self._starts.get(rank, 0)

    def only(self, ranks: Iterable[int]) -> None:
        """Who is not among these is not there."""
        for rank in set(self.peers) - set(ranks) - {self.me}:
            self.process_ended(rank, self.process(rank))

    def here(self, peer: Peer, life: int, start: int) -> bool:
        """A worker said that it is there; whether that is news."""
        with self._lock:
            if peer.index == self.me or life <= max(self._lives.get(peer.index, 0), self._ended.get(peer.index, -1)):
                return False
            self.peers[peer.index], self._lives[peer.index], self._starts[peer.index] = peer, life, start
            self.version += 1
            return True

    def ended(self, rank: int, life: int) -> bool:
        """That life of a worker is over; whether that is news."""
        with self._lock:
            return self._end(rank, life)

    def process_ended(self, rank: int, start: int) -> bool:
        """That process of a worker is over, whichever life it was in; whether that is news."""
        with self._lock:
            return self._starts.get(rank, 0) <= start and self._end(rank, self._lives.get(rank, 0))

    def _end(self, rank: int, life: int) -> bool:
        if rank == self.me or life <= self._ended.get(rank, -1):
            return False
        was = self._alive(rank)
        self._ended[rank] = life
        self.version += 1
        return was and not self._alive(rank)

    def news(self) -> News:
        """All that is known, for others."""
        with self._lock:
            lives = {**self._lives, self.me: self.life}
            starts = {**self._starts, self.me: self.start}
            here = [[rank, life, starts[rank], *_address(self.peers[rank])] for rank, life in sorted(lives.items())]
            return {"here": here, "ended": [[rank, life] for rank, life in sorted(self._ended.items())]}

    def hear(self, news: Mapping[str, Any]) -> tuple[list[int], bool]:
        """News of others. Returns the ranks that are no longer there, and whether somebody gave this worker up."""
        lost, given_up = [], False
        for rank, life, start, name, node, host, port in news.get("here", ()):
            self.here(Peer(str(name), int(rank), str(node), str(host), int(port)), int(life), int(start))
        for rank, life in news.get("ended", ()):
            if int(rank) == self.me:
                given_up = given_up or int(life) >= self.life
            elif self.ended(int(rank), int(life)):
                lost.append(int(rank))
        return lost, given_up

    def again(self, life: int) -> None:
        """This worker takes another life, because somebody believes that it has ended."""
        with self._lock:
            self.life = max(life, self.life + 1)
            self.version += 1


def _address(peer: Peer) -> tuple[str, str, str, int]:
    return peer.name, peer.node, peer.host, peer.port
