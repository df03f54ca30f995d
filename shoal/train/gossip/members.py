"""Who takes part in a gossip, as one worker knows it. Pure: news goes in and comes out as plain data.

Each start of a worker has a number of its own, larger than all before (its *life*). Whoever notices an end says which
life has ended; a worker that comes back has another, and one that was given up by mistake takes another. News that
arrives late or twice changes nothing.
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
    life: int
    peers: dict[int, Peer]
    version: int = 0  # grows with every change
    _lives: dict[int, int] = field(default_factory=dict)
    _ended: dict[int, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def present(self) -> tuple[int, ...]:
        """The ranks that are there, in order; always with `me`."""
        with self._lock:
            return tuple(sorted(rank for rank in self.peers if rank == self.me or self._alive(rank)))

    def _alive(self, rank: int) -> bool:
        return self._lives.get(rank, 0) > self._ended.get(rank, -1)

    def known(self, rank: int) -> int:
        """The latest life heard of; 0 when none was."""
        with self._lock:
            return self.life if rank == self.me else self._lives.get(rank, 0)

    def only(self, ranks: Iterable[int]) -> None:
        """Who is not among these is not there."""
        for rank in set(self.peers) - set(ranks) - {self.me}:
            self.ended(rank, self.known(rank))

    def here(self, peer: Peer, life: int) -> bool:
        """A worker said that it is there; whether that is news."""
        with self._lock:
            if peer.index == self.me or life <= max(self._lives.get(peer.index, 0), self._ended.get(peer.index, -1)):
                return False
            self.peers[peer.index], self._lives[peer.index] = peer, life
            self.version += 1
            return True

    def ended(self, rank: int, life: int) -> bool:
        """That life of a worker is over; whether that is news."""
        with self._lock:
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
            here = [[rank, life, *_address(self.peers[rank])] for rank, life in sorted(lives.items())]
            return {"here": here, "ended": [[rank, life] for rank, life in sorted(self._ended.items())]}

    def hear(self, news: Mapping[str, Any]) -> tuple[list[int], bool]:
        """News of others. Returns the ranks that are no longer there, and whether somebody gave this worker up."""
        lost, given_up = [], False
        for rank, life, name, node, host, port in news.get("here", ()):
            self.here(Peer(str(name), int(rank), str(node), str(host), int(port)), int(life))
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
