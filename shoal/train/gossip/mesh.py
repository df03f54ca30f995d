"""The links of one worker to its neighbours, and the door at which they call. Knows who is there, not what is said.

A link is opened when it is first needed and kept: its end is how an end is noticed, on either side, at once. A worker
that leaves says so first. Whoever notices tells all others, because neighbours follow from who is there, and two that
differ in that might wait for each other's calls for ever. And every message carries what its sender knows of the
members, when that has changed since it last told.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from shoal.errors import ShoalError, UnknownName
from shoal.train import house
from shoal.train.errors import PeerLost, WaitedTooLong
from shoal.train.gossip.members import Members
from shoal.train.gossip.watch import Watch
from shoal.train.wire import host as wire
from shoal.train.wire.frames import Buffer, Meta
from shoal.train.wire.link import Link, Reply
from shoal.train.world import World

SERVICE = "gossip"
REACH = 2.0  # seconds to reach a neighbour before it counts as lost
GOODBYE = 1.0  # seconds for all to hear that this worker leaves

_log = logging.getLogger("shoal.train")
_lock = threading.Lock()
_open: dict[tuple[str, int], Mesh] = {}


class Room(Protocol):
    """What answers for one model or one space of it. Calls of one rank come one at a time."""

    def handle(self, rank: int, meta: Meta, payload: memoryview) -> tuple[Meta, Sequence[Buffer]]: ...

    def landing(self, rank: int, meta: Meta, size: int) -> memoryview | None:
        """Where a payload is to land."""
        ...

    def lost(self, rank: int) -> None:
        """A worker is no longer there: what was kept for it can go."""
        ...


@dataclass(frozen=True, eq=False)
class Line:
    """A link, and the start of the process it leads to."""

    link: Link
    start: int


class Mesh:
    """One per worker, shared by all that gossips there. A Service of the wire."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.members = Members(world.rank, time.time_ns(), {peer.index: peer for peer in world.workers})
        self.rooms: dict[str, Room] = {}
        self.users = 0
        self.ending = False
        self._lines: dict[int, Line] = {}
        self._opening: dict[int, threading.Lock] = {}
        self._told: dict[int, int] = {}  # rank → the version of the members it was told
        self._callers: dict[int, tuple[int, int]] = {}  # connection → rank and start of that process
        self._met: dict[int, int] = {}  # rank → start of the latest process that was spoken to
        self._lock = threading.Lock()
        self._watch = Watch(self._ended)
        self._service = f"{SERVICE}-{world.serial}"  # the door may still be that of the neighbour's run before
        house.serve(world, self._service, self)

    @classmethod
    def of(cls, world: World) -> Mesh:
        """The mesh of this worker; one object for all who ask. `close` it as often."""
        me = world.workers[world.rank]
        with _lock:
            mesh = _open.get((me.host, me.port))
            if mesh is None or mesh.world is not world:  # that of a run before, which ended badly, is of no use
                mesh = _open[(me.host, me.port)] = cls(world)
            mesh.users += 1
            return mesh

    def enter(self, name: str, room: Room) -> None:
        """From now on the room answers."""
        self.rooms[name] = room

    def close(self) -> None:
        """The last user says goodbye to everyone and closes all links. Calls find no room afterwards."""
        me = self.world.workers[self.world.rank]
        with _lock:
            self.users -= 1
            if self.users:
                return
            if _open.get((me.host, me.port)) is self:
                del _open[(me.host, me.port)]
        self.ending = True
        self._say_goodbye({*self._lines, *(rank for rank, _ in list(self._callers.values()))} - {self.members.me})
        with self._lock:
            lines, self._lines = list(self._lines.values()), {}
        self._watch.close()
        for line in lines:
            line.link.close()
        self.rooms.clear()

    def _say_goodbye(self, ranks: set[int]) -> None:
        """To all at once, and not for long: one that is stopped does not hear it, and another may be on its link."""
        goodbyes = [
            threading.Thread(target=self._tell, args=(rank, {"kind": "leave"}, GOODBYE), daemon=True) for rank in ranks
        ]
        for goodbye in goodbyes:
            goodbye.start()
        until = time.monotonic() + GOODBYE
        for goodbye in goodbyes:
            goodbye.join(max(0.0, until - time.monotonic()))

    # -- asking --------------------------------------------------------------------------------------------------------

    def ask(self, rank: int, meta: Meta, payload: Sequence[Buffer] = (), into: memoryview | None = None) -> Reply:
        """Asks a neighbour. PeerLost when it is not there any more: then it is no member any more, either."""
        start = self.members.process(rank)
        try:
            line = self._line(rank, REACH)
            start = line.start
            reply = line.link.ask(self._with_news(rank, meta), payload, into)
        except (PeerLost, WaitedTooLong) as error:
            self.lost(rank, start, f"{error}")
            raise PeerLost(f"worker-{rank} is gone: {error}", [f"worker-{rank}"]) from error
        self._hear(reply.meta)
        return reply

    def try_ask(self, rank: int, meta: Meta, reach: float) -> Meta | None:
        """The same of one that may not be there, or not yet: None then, and nobody is given up."""
        with suppress(PeerLost, WaitedTooLong, UnknownName):
            answer = self._line(rank, reach).link.ask(self._with_news(rank, meta)).meta
            self._hear(answer)
            return answer
        self._drop_line(rank)
        return None

    def linked(self, rank: int) -> bool:
        """Whether there is a link to that worker that has not ended."""
        line = self._lines.get(rank)
        return line is not None and not line.link.closed

    def lost(self, rank: int, start: int, why: str = "") -> None:
        """A neighbour's process has ended without a word. Everyone will hear of it from here."""
        if self.members.process_ended(rank, start) and not self.ending:
            _log.warning("worker-%d is gone (%s); gossip goes on without it", rank, why or "its connection ended")
            self.spread()
        if self.members.process(rank) <= start:
            self._forget(rank)

    def spread(self) -> None:
        """Tells everyone what is new about the members, beside whatever goes on."""
        threading.Thread(target=self._tell_all, name="shoal-news", daemon=True).start()

    def _tell_all(self) -> None:
        for rank in self.members.present():
            if rank != self.members.me and self._told.get(rank) != self.members.version and not self.ending:
                self._tell(rank, {"kind": "news"}, REACH)

    def _tell(self, rank: int, meta: Meta, reach: float) -> None:
        """Whatever comes of it: who cannot be told finds out."""
        with suppress(ShoalError, OSError):
            self.try_ask(rank, meta, reach)

    def _line(self, rank: int, reach: float) -> Line:
        with self._lock:
            opening = self._opening.setdefault(rank, threading.Lock())
        with opening:
            line = self._lines.get(rank)
            if line is None or line.link.closed:
                link = house.reach(self.world, self.members.peers[rank], self._service, reach)
                hello = {"kind": "hello", "rank": self.members.me, "start": self.members.start}
                answer = link.ask({**hello, "news": self.members.news()}).meta
                line = Line(link, int(answer["start"]))
                self._hear(answer)
                self._meet(rank, line.start)
                with self._lock:
                    self._lines[rank] = line
                self._watch.add(rank, link)
            return line

    def _meet(self, rank: int, start: int) -> None:
        """That process speaks for the rank now: what was kept for one before it leads nowhere."""
        with self._lock:
            before = self._met.get(rank, start)
            self._met[rank] = max(before, start)
        if start > before:
            self._forget(rank)

    def _drop_line(self, rank: int) -> None:
        with self._lock:
            line = self._lines.pop(rank, None)
        if line is not None:
            self._watch.drop(rank)
            line.link.close()

    def _ended(self, rank: int, link: Link) -> None:
        """A link ended from outside, and nobody was asking."""
        line = self._lines.get(rank)
        if line is not None and line.link is link and not self.ending:
            self.lost(rank, line.start)

    def _forget(self, rank: int) -> None:
        self._drop_line(rank)
        self._told.pop(rank, None)
        for room in list(self.rooms.values()):
            room.lost(rank)

    def _with_news(self, rank: int, meta: Meta) -> Meta:
        version = self.members.version
        if self._told.get(rank) == version:
            return meta
        self._told[rank] = version
        return {**meta, "news": self.members.news()}

    def _hear(self, meta: Meta) -> None:
        news = meta.get("news")
        if not news:
            return
        lost, given_up = self.members.hear(news)
        for rank in lost:
            _log.info("worker-%d is not there any more, a neighbour says; gossip goes on without it", rank)
            self._forget(rank)
        if given_up and not self.ending:
            self.members.again(time.time_ns())

    # -- answering -----------------------------------------------------------------------------------------------------

    def handle(self, peer: wire.Peer, meta: Meta, payload: memoryview) -> wire.Answer:
        if meta["kind"] == "hello":
            return self._hello(peer, meta)
        rank, start = self._callers.get(peer.number, (-1, 0))
        if rank < 0:
            return {"kind": "closed"}, ()  # it has said goodbye
        self._hear(meta)
        if meta["kind"] == "leave":
            return self._goodbye(peer, rank, start)
        room = self.rooms.get(str(meta.get("room")))
        if room is None:
            return {"kind": "news" if meta["kind"] == "news" else "closed"}, ()
        answer, parts = room.handle(rank, meta, payload)
        return self._with_news(rank, answer), parts

    def _hello(self, peer: wire.Peer, meta: Meta) -> wire.Answer:
        rank, start = int(meta["rank"]), int(meta["start"])
        self._callers[peer.number] = (rank, start)
        self._hear(meta)
        self._meet(rank, start)
        return {"kind": "hello", "start": self.members.start, "news": self.members.news()}, ()

    def _goodbye(self, peer: wire.Peer, rank: int, start: int) -> wire.Answer:
        del self._callers[peer.number]
        if self.members.process_ended(rank, start) and not self.ending:
            self.spread()
        if self.members.process(rank) <= start:
            self._forget(rank)
        return {"kind": "bye"}, ()

    def buffer(self, peer: wire.Peer, meta: Meta, size: int) -> memoryview | None:
        caller, room = self._callers.get(peer.number), self.rooms.get(str(meta.get("room")))
        return room.landing(caller[0], meta, size) if caller and room else None

    def left(self, peer: wire.Peer) -> None:
        """A connection ended: so did the process that called, unless it said goodbye or has another."""
        rank, start = self._callers.pop(peer.number, (-1, 0))
        if rank >= 0 and not self.ending and (rank, start) not in list(self._callers.values()):
            self.lost(rank, start)
