"""A few words between all workers of a job: everybody says something, everybody hears all of it.

For what a framework's own exchange does not carry: which texts a column holds, who stops when. The first worker hosts;
each proves the secret of the attempt, and nothing but JSON and plain bytes travels.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any

from shoal.train.errors import PeerLost
from shoal.train.wire.frames import Meta
from shoal.train.wire.host import Answer, Host, Peer
from shoal.train.wire.link import Link
from shoal.train.world import World

SERVICE = "meeting"
GRACE, PAUSE = 2.0, 0.005  # seconds for the others to leave, and between two looks
DEADLINE = 300.0  # seconds for the first worker to come: it may still be importing its framework


class Meeting:
    """Every worker makes the same calls in the same order. One that is lost ends the others' wait with PeerLost."""

    def __init__(self, world: World) -> None:
        self.rank, self.size = world.rank, world.size
        self._table = Table(world.size)
        self._host: Host | None = None
        self._link: Link | None = None
        if world.size == 1:
            return
        first = world.workers[0]
        if world.rank == 0:
            self._host = Host(world.secret, {SERVICE: self._table}, first.host, first.port).start()
        else:
            self._link = Link.open(
                first.host, first.port, world.secret, service=SERVICE, me=world.me, peer=first.name, deadline=DEADLINE
            )

    def gather(self, word: Any) -> list[Any]:
        """What every worker said, in the order of the ranks."""
        if self._link is not None:
            words: list[Any] = self._link.ask({"rank": self.rank, "word": word}).meta["words"]
            return words
        return self._table.say(self.rank, word)

    def first(self, word: Any) -> Any:
        """What rank 0 said."""
        return self.gather(word if self.rank == 0 else None)[0]

    def share(self, load: bytes) -> bytes:
        """The bytes of rank 0, however many they are."""
        if self._link is not None:
            return bytes(self._link.ask({"rank": self.rank, "word": None, "load": True}).payload)
        self._table.load = load
        self._table.say(self.rank, None)
        return load

    def close(self) -> None:
        """Leaves; whoever still waits for this worker is told so. The first one stays a little, until the others have
        heard its last words. Harmless twice."""
        if self._link is not None:
            self._link.close()
        if self._host is not None:
            self._table.leave("worker-0")
            until = time.monotonic() + GRACE
            while self._host.peers() and time.monotonic() < until:
                time.sleep(PAUSE)
            self._host.close()
            self._host = None

    def __enter__(self) -> Meeting:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Table:
    """Where the words lie until the last one has come: a service behind the first worker's host."""

    def __init__(self, size: int) -> None:
        self.load = b""  # of rank 0, set before it says that it is there
        self._size = size
        self._changed = threading.Condition()
        self._words: dict[int, Any] = {}
        self._round = 0
        self._said: list[Any] = []
        self._lost: str | None = None

    def say(self, rank: int, word: Any) -> list[Any]:
        """Blocks until all have said theirs."""
        with self._changed:
            mine = self._round
            self._words[rank] = word
            if len(self._words) == self._size:
                self._said = [self._words[number] for number in range(self._size)]
                self._words, self._round = {}, mine + 1
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._round > mine or self._lost)
            if self._round == mine:
                raise PeerLost(f"{self._lost} is gone; look at its log", [str(self._lost)])
            return self._said

    def handle(self, peer: Peer, meta: Meta, payload: memoryview) -> Answer:
        words = self.say(int(meta["rank"]), meta["word"])
        return ({}, (self.load,)) if meta.get("load") else ({"words": words}, ())

    def buffer(self, peer: Peer, meta: Meta, size: int) -> memoryview | None:
        return None

    def left(self, peer: Peer) -> None:
        self.leave(peer.name)

    def leave(self, name: str) -> None:
        """From now on nobody waits: those who do are told who is gone."""
        with self._changed:
            self._lost = self._lost or name
            self._changed.notify_all()
