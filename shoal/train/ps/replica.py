"""A second copy of a server's state in the memory of the next server, against the loss of a machine.

After an update the state is copied and sent, as the file of tensors that a snapshot would be, and acknowledged by its
version. Updates that come while a copy travels go with the next one, so training never waits for it; what was not
acknowledged is what a lost machine costs. The next server lets the copy land in shared memory, where it also outlives
the death of that server's process. A server that comes back with empty memory asks for it.

    copy      {space, server, attempt, version} + file   → {}
    handback  {space, server, attempt}                   → {version} + file, or {version: null}
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from shoal.errors import ShoalError
from shoal.train.errors import BadCheckpoint, NoRoom, PeerLost
from shoal.train.ps.place import Place
from shoal.train.ps.shard import Dump
from shoal.train.ps.snapshot import attempt_of, pack, unpack
from shoal.train.wire.frames import Meta
from shoal.train.wire.host import Answer, Peer
from shoal.train.wire.link import Link
from shoal.train.wire.segment import Segment
from shoal.train.world import SERVER

REST = 2.0  # times as long as a copy took, before the next one: a third of the memory's time at most
LONGEST_REST = 1.0  # seconds
PATIENCE = 10.0  # seconds to reach the next server when this one comes back

_log = logging.getLogger("shoal.train")


class Kept:
    """What this server keeps for the one before it."""

    def __init__(self, place: Place) -> None:
        self._folder, self._attempt = place.shared, attempt_of(place)
        self._landing: dict[str, Segment] = {}
        self.versions: dict[str, int] = {}  # by space and server

    def buffer(self, meta: Meta, size: int) -> memoryview | None:
        """A fresh file for a copy to land in; None where there is no room, and then the copy is not kept."""
        try:
            segment = Segment.create(self._path(meta).with_suffix(".new"), size)
        except NoRoom as short:
            _log.warning("no replica of server-%s: %s", meta.get("server"), short.message)
            return None
        self._landing[self._key(meta)] = segment
        return segment.view(0, size)

    def copy(self, _peer: Peer, meta: Meta, payload: memoryview) -> Answer:
        segment = self._landing.pop(self._key(meta), None)
        if segment is None:
            raise NoRoom(f"no room for a replica of {payload.nbytes} bytes here; make the shared memory larger")
        segment.path.replace(self._path(meta))
        segment.close()
        self.versions[self._key(meta)] = int(meta["version"])
        return {"kind": "ok"}, ()

    def hand_back(self, _peer: Peer, meta: Meta, _payload: memoryview) -> Answer:
        path = self._path(meta)
        try:
            attempt, dumps = unpack(path)
        except (OSError, BadCheckpoint):
            return {"kind": "ok", "version": None}, ()
        if attempt != self._attempt or attempt != meta.get("attempt") or str(meta["space"]) not in dumps:
            return {"kind": "ok", "version": None}, ()
        return {"kind": "ok", "version": dumps[str(meta["space"])].meta["version"]}, [Segment.open(path).view()]

    def _path(self, meta: Meta) -> Path:
        return self._folder / f"replica-{self._key(meta)}"

    @staticmethod
    def _key(meta: Meta) -> str:
        return f"{str(meta['space']).replace('/', '_')}-s{int(meta['server'])}"


class Forwarder:
    """Sends copies of one space to the next server, in a thread of its own, until it is closed."""

    def __init__(self, place: Place, space: str, freeze: Callable[[], Dump | None]) -> None:
        assert place.next is not None
        self.acknowledged = -1  # the version that the next server is known to have
        self.to = place.next
        self._place, self._space, self._freeze = place, space, freeze
        self._changed = threading.Event()
        self._closing = threading.Event()
        self._link: Link | None = None
        self._thread = threading.Thread(target=self._run, name=f"shoal-replica-{space}", daemon=True)

    def start(self) -> None:
        self._changed.set()
        self._thread.start()

    def changed(self) -> None:
        """There is something new to send."""
        self._changed.set()

    def close(self) -> None:
        """The last copy may be on its way: it is waited for a moment."""
        self._closing.set()
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join(LONGEST_REST)
        if self._link is not None:
            self._link.close()

    def _run(self) -> None:
        while True:
            self._changed.wait()
            if self._closing.is_set():
                return
            self._changed.clear()
            begin = time.monotonic()
            try:
                self._send()
            except (ShoalError, OSError) as failed:
                self._lost(failed)
            self._closing.wait(min(LONGEST_REST, REST * (time.monotonic() - begin)))

    def _send(self) -> None:
        dump = self._freeze()
        if dump is None:
            return
        version = int(dump.meta["version"])
        attempt = attempt_of(self._place)
        link = self._link or reach(self._place)
        self._link = link
        meta = {"kind": "copy", "space": self._space, "server": self._place.index, "attempt": attempt}
        link.ask({**meta, "version": version}, pack({self._space: dump}, attempt))
        self.acknowledged = version

    def _lost(self, failed: Exception) -> None:
        """The next server is away, or has no room: tried again after a rest, because there is a change to send."""
        if not self._closing.is_set():
            _log.warning("%s: no replica at %s for now: %s", self._place.name, self.to.name, failed)
        if self._link is not None and self._link.closed:
            self._link = None
        self._changed.set()
        self._closing.wait(LONGEST_REST)


def ask_back(place: Place, space: str) -> Dump | None:
    """What the next server keeps of a space of this one; None where it has nothing or cannot be reached."""
    if place.next is None:
        return None
    meta = {"kind": "handback", "space": space, "server": place.index, "attempt": attempt_of(place)}
    try:
        link = reach(place)
    except ShoalError as away:
        _log.warning("%s: cannot ask for a replica: %s", place.name, away.message)
        return None
    try:
        reply = link.ask(meta)
    except PeerLost as lost:
        _log.warning("%s: cannot ask for a replica: %s", place.name, lost.message)
        return None
    finally:
        link.close()
    return _read(place, space, reply.payload) if reply.meta["version"] is not None else None


def reach(place: Place) -> Link:
    peer = place.next
    assert peer is not None
    me = f"{SERVER}-{place.index}"
    return Link.open(peer.host, peer.port, place.secret, service="ps", me=me, peer=peer.name, deadline=PATIENCE)


def _read(place: Place, space: str, content: memoryview) -> Dump | None:
    path = place.shared / f"handback-{space}-s{place.index}"
    path.write_bytes(content)
    try:
        return unpack(path)[1].get(space)
    finally:
        path.unlink()  # it stays mapped as long as it is used
