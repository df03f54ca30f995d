"""All that is kept of a server elsewhere: snapshots on disk, a replica on the next server."""

from __future__ import annotations

import logging

from shoal.train.ps import replica, snapshot
from shoal.train.ps.place import Place
from shoal.train.ps.served import Served
from shoal.train.ps.shard import Dump
from shoal.train.ps.snapshot import Snapshots
from shoal.train.wire.frames import Meta

_log = logging.getLogger("shoal.train")


class Copies:
    """The copies of one server's spaces, and what it keeps for another."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._spaces: dict[str, Served] = {}
        self._snapshots = Snapshots(place, self._changes, self._freeze_all)
        self._replicas = bool(place.strategy.options.get("replicas")) and place.next is not None
        self._forwarders: dict[str, replica.Forwarder] = {}
        self._kept = replica.Kept(place)
        self.kinds = {"copy": self._kept.copy, "handback": self._kept.hand_back}

    def buffer(self, meta: Meta, size: int) -> memoryview | None:
        return self._kept.buffer(meta, size) if meta.get("kind") == "copy" else None

    def restore(self, name: str, served: Served) -> None:
        """Fills a fresh space from the newest copy of this attempt, if its machine was lost; says so."""
        found = snapshot.newest(
            [
                ("the replica", replica.ask_back(self._place, name) if self._replicas else None),
                ("the snapshot", self._snapshots.find(name)),
            ]
        )
        if found is None:
            return
        label, dump = found
        served.shard.load([dump], memory=True)
        served.came_from(label)
        _log.warning(
            "%s: space %s comes back from %s at version %d", self._place.name, name, label, served.shard.version
        )

    def follow(self, name: str, served: Served) -> None:
        """Keeps copies of this space from now on."""
        self._spaces[name] = served
        if self._replicas:
            forwarder = replica.Forwarder(self._place, name, served.freeze_filled)
            served.space.on_change = forwarder.changed
            self._forwarders[name] = forwarder
            forwarder.start()

    def start(self) -> None:
        self._snapshots.start()

    def close(self) -> None:
        for forwarder in self._forwarders.values():
            forwarder.close()
        self._snapshots.close()

    def status(self, name: str) -> Meta:
        forwarder, told = self._forwarders.get(name), {}
        if forwarder is not None:
            told["replica"] = {"at": forwarder.to.name, "version": forwarder.acknowledged}
        if self._snapshots.every:
            told["snapshot"] = {"version": self._snapshots.versions.get(name), "at": self._snapshots.taken_at}
        return told

    def _changes(self) -> dict[str, int]:
        return {name: served.space.changes for name, served in list(self._spaces.items())}

    def _freeze_all(self) -> dict[str, Dump]:
        frozen = {name: served.freeze_filled() for name, served in list(self._spaces.items())}
        return {name: dump for name, dump in frozen.items() if dump is not None}
