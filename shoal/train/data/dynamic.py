"""`data=dynamic`: this worker's side of the clerk. It asks for a shard when it needs one, so a fast worker reads more.

Every worker draws the same order and numbers its batches; a shard is a range of these numbers. What has been handed to
the script counts as done when the script asks for the next batch, and is told to the clerk with the next question. An
input without length is read from the front by everyone, who leave out what is not theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shoal.errors import ShoalError
from shoal.train import house
from shoal.train.data.clerk import NAME, Clerk
from shoal.train.data.ledger import Range, Report, plus
from shoal.train.data.passes import Pass, Source
from shoal.train.data.readers import LEFT_OUT, Reader, reader_of
from shoal.train.errors import PeerLost
from shoal.train.seeing import DATA, Seeing
from shoal.train.wire.frames import Meta
from shoal.train.wire.link import Link
from shoal.train.world import Peer, World

if TYPE_CHECKING:
    from shoal.train.data.shard import Shard

PATIENCE = 60.0  # seconds for a lost clerk to come back
NOTICE = 5.0  # seconds between two looks at who still needs the clerk
_END = object()

_log = logging.getLogger("shoal.train")


@dataclass
class Hand:
    """The shards this worker holds, in the order in which they are read."""

    opened: Meta  # what the clerk was told when the pass began
    ranges: list[Range] = field(default_factory=list)  # held; of the first, what is left
    read: list[Range] = field(default_factory=list)  # done, but the clerk does not know yet
    over: bool = False

    @property
    def key(self) -> Meta:
        return {name: self.opened[name] for name in ("feed", "epoch", "number")}

    def next_done(self) -> None:
        """The batch at the front went to the script."""
        begin, end = self.ranges.pop(0)
        self.read = plus(self.read, (begin, begin + 1))
        if begin + 1 < end:
            self.ranges.insert(0, (begin + 1, end))

    def told(self) -> Meta:
        return {**self.key, "done": self.read, "holding": self.ranges}


class Desk:
    """The link to the clerk. One that is lost is opened again and the clerk reminded of what was open."""

    def __init__(self, world: World, seeing: Seeing) -> None:
        self._world, self._seeing = world, seeing
        self._patience = float(world.variables.get("SHOAL_TRAIN_PATIENCE", PATIENCE))
        self._own: Clerk | None = None  # hosted here
        if not world.servers and world.rank == 0:
            self._own = Clerk()
            house.serve(world, NAME, self._own)
        self._link: Link | None = None

    @property
    def clerk(self) -> Peer:
        return self._world.servers[0] if self._world.servers else self._world.workers[0]

    def ask(self, hand: Hand, kind: str, **more: Any) -> Meta:
        """The answer. With every question the clerk is told what is done and held here; it is asked again of a clerk
        that came back."""
        while True:
            try:
                link = self._link or self._call(hand)
                answer = link.ask({"kind": kind, **hand.told(), **more}).meta
                hand.read = []
                return answer
            except PeerLost:
                if self._link is None:  # it could not be reached again
                    raise
                _log.warning("lost the clerk on %s; calling it again for up to %g s", self.clerk.name, self._patience)
                self._link = None

    def close(self) -> None:
        """Says good-bye; a clerk that is hosted here stays until the others have left. Harmless twice."""
        if self._link:
            self._link.close()
            self._link = None
        if self._own:
            with self._seeing.waiting_for("those who still need the clerk"):
                while left := self._own.until_left(NOTICE):
                    self._seeing.wait_is_for(", ".join(left))
            self._own = None

    def _call(self, hand: Hand) -> Link:
        with self._seeing.waiting_for(f"the clerk on {self.clerk.name}"):
            self._link = house.reach(self._world, self.clerk, NAME, self._patience)
        self._link.ask({"kind": "open", **hand.opened})
        return self._link


class Dealer:
    """Deals the passes of all loaders of this worker."""

    def __init__(self, world: World, seeing: Seeing) -> None:
        self._world, self._seeing = world, seeing
        self._desk: Desk | None = None
        self._hands: dict[int, Hand] = {}  # slot → the pass under way
        self.reports: dict[int, Report] = {}  # slot → what its last pass came to

    def open(self) -> Desk:
        """Starts the clerk where it lives here, so that the others find it."""
        if self._desk is None:
            self._desk = Desk(self._world, self._seeing)
        return self._desk

    def deal(self, shard: Shard, source: Source, one: Pass, dealt: Mapping[str, Any] | None) -> Iterator[Any]:
        """The batches of the shards that this worker gets, until the epoch is over for everybody."""
        desk, reader = self.open(), reader_of(source, one)
        hand = self._hands[shard.slot] = Hand(
            {
                "feed": f"{shard.name} of run {self._world.serial + 1}" if self._world.serial else shard.name,
                "epoch": one.epoch,
                "number": one.number,
                "total": reader.total,
                "done": dealt["done"] if dealt else [],
                "resumed": dealt is not None,
            }
        )
        desk.ask(hand, "open", **hand.opened)
        hand.opened = {**hand.opened, "resumed": False}
        try:
            while self._take(desk, shard.slot, hand, wait=True):
                yield from self._read(desk, shard.slot, hand, reader)
        finally:
            if not hand.over:  # left early: the others read the rest
                hand.ranges = []
                with suppress(ShoalError):
                    desk.ask(hand, "state")

    def state(self, shard: Shard) -> Meta:
        """Which batches all workers together have done."""
        answer = self.open().ask(self._hands[shard.slot], "state")
        return {"done": answer["done"], "total": answer["total"]}

    def finish(self) -> None:
        if self._desk:
            self._desk.close()

    def _read(self, desk: Desk, slot: int, hand: Hand, reader: Reader) -> Iterator[Any]:
        """Batches as long as the clerk has more at once. A loader reads ahead, so shards are asked for ahead."""
        clock, seconds = self._seeing.clock, self._seeing.seconds
        batches = reader.read(self._ahead(desk, slot, hand))
        while True:
            began = clock()
            batch = next(batches, _END)
            seconds[DATA] += clock() - began
            if batch is _END:
                break
            hand.next_done()
            if batch is not LEFT_OUT:
                yield batch
        if reader.found is not None:
            hand.ranges = []
            desk.ask(hand, "end", total=reader.found)

    def _ahead(self, desk: Desk, slot: int, hand: Hand) -> Iterator[Range]:
        yield hand.ranges[-1]
        while shard := self._take(desk, slot, hand, wait=False):
            yield shard

    def _take(self, desk: Desk, slot: int, hand: Hand, wait: bool) -> Range | None:
        if wait:
            with self._seeing.waiting_for("a shard, or the end of the epoch: others still hold the last ones"):
                answer = desk.ask(hand, "take", workers=self._world.size, wait=True)
        else:
            answer = desk.ask(hand, "take", workers=self._world.size)
        if answer["kind"] == "shard":
            begin, end = answer["shard"]
            hand.ranges.append((begin, end))
            return begin, end
        hand.over = answer["kind"] == "over"
        if answer.get("report"):
            batches, again, lost = answer["report"]
            report = self.reports[slot] = Report(batches, again, tuple(lost))
            if answer["say"]:
                level = logging.INFO if report.exactly_once else logging.WARNING
                _log.log(level, "%s, epoch %d: %s", hand.opened["feed"], hand.opened["epoch"], report)
        return None
