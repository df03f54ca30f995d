"""The clerk: hands out shards over the wire. A service beside the parameters on the first server, or in the first
worker where there are no servers.

| kind | asks | answers |
|---|---|---|
| open | feed, epoch, number, total or null, done, resumed | |
| take | feed, epoch, number, holding, done, workers, wait | shard, or over with a report, or neither: later |
| end | feed, epoch, number, total | |
| state | feed, epoch, number, done, holding | done |

A worker that asks with `wait` is answered when there is a shard or the epoch is over. One whose connection ends gives
back what it held. With a folder to note things in, a clerk that comes back knows what the one before it knew; workers
that do not call again within GRACE are taken for lost.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.train.data.ledger import LARGEST, Ledger, Range
from shoal.train.errors import Disagreement, TrainError
from shoal.train.ps.place import Place
from shoal.train.wire.frames import Meta
from shoal.train.wire.host import Answer, Peer

NAME = "clerk"
FIRST = "worker-0"
GRACE = 60.0  # seconds in which workers must call a clerk that came back, and the first one after a restart
LOOK = 0.5  # seconds between two looks for those that did not

Pass = tuple[int, int]  # epoch, number in it

_log = logging.getLogger("shoal.train")


class Clerk:
    """A `Service`. Calls come from many threads."""

    def __init__(self, notes: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._notes, self._clock = notes, clock
        self._ledgers: dict[str, dict[Pass, Ledger]] = {}  # feed → its passes; of those that are over, the newest
        self._links: dict[str, int] = {}  # worker → its connection
        self._gone: set[int] = set()  # connections that ended
        self._change = threading.Condition()
        self._missing: dict[str, float] = {}  # workers that held something when the clerk came back → until when
        self._recall()

    @classmethod
    def of(cls, place: Place) -> Clerk:
        """The clerk of a server; what it knows outlives its process."""
        return cls(place.shared / "clerk.json")

    def handle(self, peer: Peer, meta: Meta, payload: memoryview) -> Answer:
        with self._change:
            self._links[peer.name] = peer.number
            self._missing.pop(peer.name, None)
            kind = meta.get("kind")
            if kind == "open":
                return self._open(peer, meta), ()
            if kind == "take":
                return self._take(peer, meta), ()
            if kind == "end":
                return self._end(peer, meta), ()
            if kind == "state":
                return self._state(peer, meta), ()
        raise TrainError(f"the clerk was asked {kind!r}, which it does not know; are all workers of one version?")

    def buffer(self, peer: Peer, meta: Meta, size: int) -> memoryview | None:
        return None

    def left(self, peer: Peer) -> None:
        with self._change:
            self._gone.add(peer.number)
            if self._links.get(peer.name) == peer.number:
                del self._links[peer.name]
                self._lose(peer.name)
            self._change.notify_all()

    def until_left(self, patience: float) -> list[str]:
        """Until nobody is connected any more, however that ends; who still is, when patience is over."""
        with self._change:
            self._change.wait_for(lambda: not self._links, patience)
            return sorted(self._links)

    # -- the four questions, under the lock --------------------------------------------------------------------------

    def _open(self, peer: Peer, meta: Meta) -> Meta:
        feed, wanted, total = str(meta["feed"]), _pass(meta), meta["total"]
        passes = self._ledgers.setdefault(feed, {})
        if meta.get("resumed") and peer.name != FIRST:
            # What is done is known to the checkpoint that holds the model, and that is the first worker's.
            # Who comes late may find that pass over and forgotten.
            self._change.wait_for(lambda: (bool(passes) and wanted <= max(passes)) or peer.number in self._gone, GRACE)
        if wanted not in passes and (not passes or wanted > max(passes)):
            passes[wanted] = Ledger.resumed(total, LARGEST, meta.get("done") or ())
            for old in [one for one in passes if one < wanted and passes[one].over]:
                del passes[old]
            self._note()
            self._change.notify_all()
        known = passes[wanted].total if wanted in passes else None
        if total is not None and known is not None and total != known:
            raise Disagreement(
                f"{feed} has {total} batches here and {known} for the worker that came first: give every worker the "
                "same data"
            )
        return {"kind": "opened"}

    def _take(self, peer: Peer, meta: Meta) -> Meta:
        while True:
            ledger = self._ledger(meta)
            if ledger is None:
                return {"kind": "over"}  # the others are in a later epoch: this one was read without it
            self._settle(peer, ledger, meta)
            if ledger.over:
                return self._over(ledger)
            shard = ledger.take(peer.name, int(meta.get("workers") or len(self._links)))
            if shard is not None:
                self._note()
                return {"kind": "shard", "shard": shard}
            if not meta.get("wait") or peer.number in self._gone:
                return {"kind": "later"}
            self._change.wait(LOOK if self._missing else None)
            self._lose_missing()

    def _over(self, ledger: Ledger) -> Meta:
        """The first who hears it is the one to say it."""
        first, ledger.told = not ledger.told, True
        return {"kind": "over", "report": [ledger.report().batches, ledger.again, ledger.lost], "say": first}

    def _end(self, peer: Peer, meta: Meta) -> Meta:
        ledger = self._ledger(meta)
        if ledger is not None:
            ledger.end(int(meta["total"]))
            self._settle(peer, ledger, meta)
            self._note()
            self._change.notify_all()
        return {"kind": "ended"}

    def _state(self, peer: Peer, meta: Meta) -> Meta:
        ledger = self._ledger(meta)
        if ledger is not None:
            self._settle(peer, ledger, meta)
        return {"kind": "state", "done": ledger.done if ledger else [], "total": ledger.total if ledger else None}

    def _settle(self, peer: Peer, ledger: Ledger, meta: Meta) -> None:
        """Writes down what the worker has done, and believes it about what it holds."""
        before = ledger.to_json()
        ledger.finish(peer.name, _ranges(meta.get("done")))
        ledger.reconcile(peer.name, _ranges(meta.get("holding")))
        meta["done"] = []  # once: the loop in `_take` comes by again
        if ledger.to_json() != before:
            self._note()
            self._change.notify_all()

    def _ledger(self, meta: Meta) -> Ledger | None:
        """Of the pass that is meant; None when it is over and forgotten."""
        passes, wanted = self._ledgers.get(str(meta["feed"]), {}), _pass(meta)
        if not passes or wanted > max(passes):
            raise TrainError(f"{meta['feed']} was not opened for epoch {meta['epoch']}; open it first")
        return passes.get(wanted)

    def _lose(self, worker: str) -> None:
        for passes in self._ledgers.values():
            for ledger in passes.values():
                ledger.leave(worker)
        self._note()

    def _lose_missing(self) -> None:
        for worker, until in list(self._missing.items()):
            if self._clock() > until:
                del self._missing[worker]
                _log.warning("%s did not call the clerk again: its shards go to others", worker)
                self._lose(worker)

    # -- what outlives the process -----------------------------------------------------------------------------------

    def _note(self) -> None:
        """All of it, whole or not at all: it is small. Not synced, because it must survive a process, not a machine."""
        if self._notes is None:
            return
        told = [[f, *at, one.to_json()] for f, passes in self._ledgers.items() for at, one in passes.items()]
        beside = self._notes.with_suffix(f".{os.getpid()}")
        beside.write_text(json.dumps(told))
        beside.replace(self._notes)

    def _recall(self) -> None:
        if self._notes is None or not self._notes.exists():
            return
        for feed, epoch, number, raw in json.loads(self._notes.read_text()):
            ledger = Ledger.from_json(raw)
            self._ledgers.setdefault(feed, {})[(epoch, number)] = ledger
            self._missing.update({worker: self._clock() + GRACE for worker in ledger.held})


def _pass(meta: Meta) -> Pass:
    return int(meta["epoch"]), int(meta["number"])


def _ranges(raw: Any) -> list[Range]:
    return [(int(begin), int(end)) for begin, end in raw or ()]
