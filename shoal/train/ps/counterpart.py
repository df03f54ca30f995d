"""One server of one space, as this worker deals with it: the link, how far it has come there, and coming back to it.

A server that dies takes its connections along and nothing else: its memory outlives it. The worker opens another link,
says hello again, learns whether its last push was taken, and sends it again if not. Push numbers count per worker,
space and server, so each push is applied once whatever happens in between.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shoal.train.errors import PeerLost, TrainError, WaitedTooLong
from shoal.train.ps.lane import pin, unpin
from shoal.train.ps.layout import Part
from shoal.train.ps.reader import Reader
from shoal.train.wire.frames import Buffer, Garbled, Meta
from shoal.train.wire.link import Link, Reply
from shoal.train.world import Peer, World

SERVICE = "ps"
PATIENCE = "SHOAL_TRAIN_PATIENCE"
DEFAULT_PATIENCE = 60.0  # seconds a server may be away
NOTICE = 5.0  # seconds of waiting after which the server is asked for whom
MOST_SOCKETS = 4  # of a link to another host
WORTH = 4 << 20  # bytes of parameters for each of them
PAUSE = 0.02  # seconds before a server that refused for now is asked again
WHOLE = ("dump", "take")  # asks with everything a server holds: one that breaks the link is likely to break the next
PARAMS, SLOT, NOTHING = "params", "slot", "none"  # what the answer to a push brings from afar

_log = logging.getLogger("shoal.train")


@dataclass(frozen=True)
class Outcome:
    """How a push went on one server."""

    staleness: int = 0
    dropped: bool = False  # it came too late and did not count
    waited_for: tuple[str, ...] = ()


class Counterpart:
    """Calls come from one thread at a time, except `close`."""

    def __init__(
        self,
        world: World,
        peer: Peer,
        part: Part,
        greeting: Meta,
        initial: Callable[[Part], Buffer],
        waiting: Callable[[str], None] = lambda who: None,
        pinned: bool = False,
    ) -> None:
        """`greeting` is what hello says of the space; `initial` gives values to a server that has none; `waiting` is
        told for whom a push waits, when it does for long; `pinned` says that parameters go on to a GPU."""
        self.peer = peer
        self.part = part
        self.here = not greeting["remote"]
        self.seq = 0  # of the last push
        self.clock = 0  # iterations finished, as the server counts them
        self.version = 0  # of the parameters last read
        self.joined_at = 0  # the version found at the first hello: 0 while nobody had pushed
        self.filled = False  # what is to be pushed lies in the server's slot already
        self.older = False  # it came back with an older state, and perhaps with older hyperparameters
        self.reader: Reader | None = None  # of a server of this node
        self._world, self._greeting, self._initial, self._waiting = world, greeting, initial, waiting
        self._patience = float(world.variables.get(PATIENCE, DEFAULT_PATIENCE))
        self._pinned, self._pins = pinned, False  # whether to, and whether it is
        self._link: Link | None = None
        self._over = False
        self._taken = 0  # the last push that the server is known to have taken
        self._moved = [0, 0]  # bytes sent and received over links that are closed

    @property
    def moved(self) -> tuple[int, int]:
        """Bytes sent and received so far."""
        link = self._link
        sent, received = (link.bytes_sent, link.bytes_received) if link else (0, 0)
        return self._moved[0] + sent, self._moved[1] + received

    def open(self) -> None:
        """Finds the server, agrees with it on what the space is, and gives it values if it has none."""
        told = self._meet()
        self.joined_at = self.version = int(told["version"])
        self.seq = self._taken = int(told["last_seq"])
        self.clock = int(told["clock"])

    def push(self, extra: Meta, payload: Callable[[], Sequence[Buffer]], into: memoryview | None) -> Outcome:
        """One push, until it is answered: the worker may go on. `payload` gives what must travel; it is asked again
        when the push is sent again."""
        self.seq += 1
        self.clock += 1
        meta = {"kind": "push", "seq": self.seq, "clock": self.clock, **extra}
        told = self._persist(meta, lambda: () if self._taken >= self.seq else payload(), into).meta
        self._taken, self.filled = self.seq, False
        if not self.here:
            self.version = int(told["version"])
        return Outcome(int(told["staleness"]), bool(told["dropped"]), tuple(told["waited_for"]))

    def fill(self, begin: int, payload: memoryview, count: int) -> bool:
        """Fills a range of the server's slot ahead of the push. Whether it arrived; if not, the push brings all."""
        if self._link is None or self._link.closed:
            return False
        try:
            self._link.ask(
                {"kind": "part", "space": self._greeting["space"], "begin": begin, "count": count}, [payload]
            )
        except PeerLost:
            return False
        return True

    def complete(self, ranges: Sequence[tuple[int, memoryview, int]]) -> None:
        """The ranges that had not been filled ahead."""
        self.filled = self._link is not None and all(self.fill(*one) for one in ranges)

    def ask(
        self, kind: str, extra: Meta | None = None, payload: Sequence[Buffer] = (), into: memoryview | None = None
    ) -> Reply:
        """Any other question, one that may be asked twice."""
        return self._persist({"kind": kind, **(extra or {})}, lambda: payload, into)

    def leave(self) -> None:
        """Tells the server that no more comes from here. Harmless when it is gone, and twice."""
        link = None if self._over else self._link
        if link is not None:
            try:
                link.ask({"kind": "leave", "space": self._greeting["space"]})
            except PeerLost:
                pass
        self.close()

    def close(self) -> None:
        """Hangs up without a word; who waits in a call gets PeerLost. Harmless twice."""
        self._over = True
        if self._link is not None:
            self._link.close()
        self._unpin()

    def _persist(self, meta: Meta, payload: Callable[[], Sequence[Buffer]], into: memoryview | None) -> Reply:
        """Asks until it is answered, through as many lives of the server as there are."""
        meta = {"space": self._greeting["space"], **meta}
        said = broke = False
        while True:
            if self._link is None or self._link.closed:
                self._come_back()
                said = False
            assert self._link is not None
            try:
                pending = self._link.begin(meta, payload(), into)
                while not pending.ready(NOTICE):
                    self._waiting(self._missing())
                return pending.wait()
            except PeerLost as lost:
                if self._over:
                    raise
                if not self._link.closed:  # the server says so: it ends, or has taken other values
                    time.sleep(PAUSE)
                elif isinstance(lost.__cause__, Garbled) or meta["kind"] in WHOLE:
                    self._give_up_on(meta, lost, broke)
                    broke = True
                if not said:
                    _log.warning("%s; %s tries again for %g s", lost.message, self._world.me, self._patience)
                said = True

    def _give_up_on(self, meta: Meta, lost: PeerLost, broke: bool) -> None:
        """What broke the link for the second time is not the server's death: the next try would end alike."""
        if broke:
            raise TrainError(
                f"{self.peer.name} and {self._world.me} lost each other twice over {meta['kind']} of space "
                f"{meta['space']}: {lost.message}; look at the server's log, or use more servers: each holds less then"
            ) from lost

    def _missing(self) -> str:
        """For whom the server holds its answer; asked over a link of its own, because this one waits."""
        try:
            link = self._open(NOTICE)
        except (PeerLost, WaitedTooLong):
            return self.peer.name
        try:
            told = link.begin({"kind": "status"}).wait(NOTICE).meta["spaces"].get(self._greeting["space"], {})
        except (PeerLost, WaitedTooLong):
            return self.peer.name
        finally:
            link.close()
        return ", ".join(told.get("waits", {}).get(self._world.me, ())) or self.peer.name

    def _open(self, deadline: float, sockets: int = 1) -> Link:
        peer, world = self.peer, self._world
        return Link.open(
            peer.host,
            peer.port,
            world.secret,
            service=SERVICE,
            me=world.me,
            peer=peer.name,
            deadline=deadline,
            sockets=sockets,
        )

    def _come_back(self) -> None:
        if self._over:
            raise PeerLost(f"the link to {self.peer.name} was closed here; nothing more is asked", [self.peer.name])
        told = self._meet()
        self._taken = int(told["last_seq"])
        self.older = self.older or bool(told["lost"])
        fate = "was taken" if self._taken >= self.seq else "is sent again"
        _log.warning("%s is back, at version %s; push %d %s", self.peer.name, told["version"], self.seq, fate)

    def _meet(self) -> Meta:
        """Opens a link and says hello. Tried again while the server dies over it, as long as patience lasts."""
        until = time.monotonic() + self._patience
        while True:
            self._renew(self._call(until))
            try:
                return self._greet()
            except PeerLost:
                if self._over or time.monotonic() > until:
                    raise

    def _renew(self, link: Link) -> None:
        self._moved[:] = self.moved
        self._link, self.filled = link, False
        if self._over:
            link.close()

    def _call(self, until: float) -> Link:
        left = max(0.1, until - time.monotonic())
        # One stream does not fill a fast network; within a node only words travel.
        sockets = 1 if self.here else min(MOST_SOCKETS, 1 + self.part.bytes // WORTH)
        try:
            return self._open(left, sockets)
        except (PeerLost, WaitedTooLong) as lost:
            raise type(lost)(
                f"{self.peer.name} did not come within {self._patience:g} s: {lost.message}; "
                f"look at its log, or give it longer with {PATIENCE}",
                [self.peer.name],
            ) from lost

    def _greet(self) -> Meta:
        assert self._link is not None
        known = {"clock": self.clock, "version": self.version}
        told = self._link.ask({"kind": "hello", **known, **self._greeting}).meta
        if not told["initialised"]:
            space = self._greeting["space"]
            told = {**told, **self._link.ask({"kind": "init", "space": space}, [self._initial(self.part)]).meta}
        if self.here:
            self._unpin()
            self.reader = Reader(told["segment"])
            self._pins = self._pinned and pin(self.reader.params)
        return told

    def _unpin(self) -> None:
        if self._pins and self.reader is not None:
            unpin(self.reader.params)
            self._pins = False
