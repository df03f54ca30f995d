"""A process that serves: warm first, then idle until it is told to, then a host with a server's services behind it.

It ends with its parent, on SIGTERM, or when the workers it was started for have all left.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import select
import signal
import socket
import threading
import time
from contextlib import suppress
from typing import Any

from shoal._lib.process import die_with_parent, stat
from shoal.contract import Roster
from shoal.train.ps.place import Place, lost_workers
from shoal.train.wire.host import Host, Service
from shoal.train.world import WORKER

TICK = 0.1  # seconds between two looks at who is there
REJOIN = 10.0  # seconds after a restart for workers to call again
IDLE = 5.0  # seconds without anybody, after which those who did not say good-bye count as gone
GRACE = 5.0  # seconds for those who wait to be told

_log = logging.getLogger("shoal.train")


def run(place: Place, listener: int, control: int, parent: int, until_left: int = 0) -> int:
    """The life of a child. Returns its exit code."""
    die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        return 1  # it was gone before we could ask
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from a terminal: the parent ends us in order
    line = Line(control)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stopping.set())
    warm(place)
    line.say(warm=True)
    told = line.wait_for_word(stopping)
    if told is None:
        return 0
    with socket.socket(fileno=listener) as own:
        return Serving(place, own.dup(), line, told["serve"], until_left).run(stopping)


class Line:
    """The control socket to the parent: one JSON object to a line."""

    def __init__(self, number: int) -> None:
        self._sock = socket.socket(fileno=number)
        self._heard = b""

    def say(self, **word: Any) -> None:
        with suppress(OSError):
            self._sock.sendall(json.dumps(word).encode() + b"\n")

    def wait_for_word(self, stopping: threading.Event) -> dict[str, Any] | None:
        """The next word; None when the parent is gone or it is time to stop."""
        while b"\n" not in self._heard:
            if stopping.is_set():
                return None
            if not self._readable(TICK):
                continue
            piece = self._sock.recv(65536)
            if not piece:
                return None
            self._heard += piece
        line, self._heard = self._heard.split(b"\n", 1)
        word: dict[str, Any] = json.loads(line)
        return word

    def over(self) -> bool:
        """Whether the parent has hung up."""
        return self._readable(0) and not self._sock.recv(1, socket.MSG_PEEK)

    def _readable(self, seconds: float) -> bool:
        return bool(select.select([self._sock], [], [], seconds)[0])


class Serving:
    """One server while it serves."""

    def __init__(
        self, place: Place, listener: socket.socket, line: Line, told: dict[str, Any], until_left: int
    ) -> None:
        from shoal.train.ps.serve import ParameterService

        self.place = place
        self._line, self._until_left = line, until_left
        self._again = bool(told["takeovers"])  # somebody served before
        self._begin = time.monotonic()
        self._parameters = ParameterService(place, self._drop)
        further = others(place)
        self._crowds: list[Any] = [self._parameters.all, further["table"]]  # whoever may wait for a worker
        self.host = Host(place.secret, {"ps": self._parameters, **further}, listener=listener)
        self.host.seen.update(told["seen"])
        self._seen: set[str] = set(self.host.seen)
        self._roster_at = 0
        self._idle_since = self._begin
        self._starter = int(told["starter"])

    def run(self, stopping: threading.Event) -> int:
        for found in self._parameters.recover():
            _log.info("%s: found %s", self.place.name, found)
        self.host.start()
        self._parameters.start()
        self._line.say(serving=True)
        _log.info("%s: serves after %.0f ms", self.place.name, (time.monotonic() - self._begin) * 1000)
        rejoined = not self._again
        while not (stopping.wait(TICK) or self._line.over() or self._all_left()):
            self._tell_seen()
            self._read_roster()
            if not rejoined and time.monotonic() - self._begin > REJOIN:
                rejoined = True
                for crowd in self._crowds:
                    crowd.give_up_on_absent()
        self._end()
        return 0

    def _end(self) -> None:
        """Those who wait are told; what is to be kept is written."""
        closing = threading.Thread(target=self._parameters.close, args=(f"{self.place.name} ends",), daemon=True)
        closing.start()
        closing.join(GRACE)
        self.host.close()

    def _drop(self, number: int) -> None:
        self.host.hang_up(number)

    def _tell_seen(self) -> None:
        if self._seen != self.host.seen:
            self._seen = set(self.host.seen)
            self._line.say(seen=sorted(self._seen))

    def _read_roster(self) -> None:
        """Workers that will not come (any more) must not be waited for."""
        with suppress(OSError):
            changed = self.place.roster.stat().st_mtime_ns
            if changed != self._roster_at:
                self._roster_at = changed
                for crowd in self._crowds:
                    crowd.lost(lost_workers(self.place.roster))

    def _all_left(self) -> bool:
        """Whether everybody this server was started for has come and gone."""
        if not self._until_left:
            return False
        if any(peer.name.startswith(WORKER) for peer in self.host.peers()):
            self._idle_since = time.monotonic()
            return False
        silent = {f"{WORKER}-{one}" for one in self._parameters.spoken_for}
        workers = silent | {name for name in self.host.seen if name.startswith(WORKER)}
        politely = workers == silent | {f"{WORKER}-{one}" for one in self._parameters.departed}
        idle = time.monotonic() - self._idle_since > (REJOIN if self._again else IDLE)
        if len(workers) >= self._until_left and (politely or idle):
            _log.info("%s: all %d workers have left", self.place.name, len(workers))
            return True
        return idle and self._orphaned()

    def _orphaned(self) -> bool:
        """Whether whoever started our parent is gone, so that nobody new will come."""
        parent = stat(os.getppid())
        return parent is None or parent.parent != self._starter


def others(place: Place) -> dict[str, Service]:
    """The further services of this server: sparse tables, and on the first one the clerk that hands out data."""
    from shoal.train.data.clerk import Clerk
    from shoal.train.ps.snapshot import attempt_of
    from shoal.train.ps.table import TableService
    from shoal.train.ps.table_snapshots import TableSnapshots

    every = float(place.strategy.options.get("snapshot", 0.0))
    snapshots = TableSnapshots(place.snapshots, place.name, attempt_of(place), every)
    tables = TableService(
        place.shared, place.index, len(place.servers), place.strategy, place.workers, place.spill, snapshots
    )
    return {"table": tables} if place.index else {"table": tables, "clerk": Clerk.of(place)}


def warm(place: Place) -> None:
    """Imports and does once what would take time when it is needed first: torch's optimizers load much of torch."""
    import torch

    import shoal.train.data.clerk
    import shoal.train.ps.serve
    import shoal.train.ps.table  # noqa: F401

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads(place))
    # Torch's optimizers import its compiler when they are first made (a second, and much memory), only to tell it to
    # keep away from some of their methods. Nothing is compiled here: those methods are told that it was done.
    for method in vars(torch.optim.Optimizer).values():
        inner = getattr(method, "__wrapped__", None)
        if inner is not None:
            inner.__dict__.setdefault("__dynamo_disable", inner)
    value = torch.zeros(16)
    value.grad = torch.zeros(16)
    for kind in (torch.optim.SGD, torch.optim.Adam):
        inspect.unwrap(kind.step)(kind([value], lr=0.1))


def threads(place: Place) -> int:
    """A fair share of the processor: as many as there are cores for each process of the job on this node."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        members = Roster.from_json(place.roster.read_text()).members
        beside = sum(member.node == place.node for member in members)
        return max(1, len(os.sched_getaffinity(0)) // max(1, beside))
    return 1
