"""One space and all around it on a server: its memory, the slots of its workers, who is connected, what is read."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.errors import BadRequest
from shoal.train.errors import BadModel, Disagreement
from shoal.train.ps import rules
from shoal.train.ps.berths import Berths
from shoal.train.ps.layout import Layout, Part
from shoal.train.ps.orders import Resume
from shoal.train.ps.place import Place
from shoal.train.ps.recipe import HOW, Recipe
from shoal.train.ps.shard import Dump, Shard
from shoal.train.ps.slots import as_bytes
from shoal.train.ps.space import Space
from shoal.train.wire.frames import Meta
from shoal.train.world import WORKER

_log = logging.getLogger("shoal.train")


class Served:
    """Public methods may be called from any thread."""

    def __init__(self, name: str, shard: Shard, path: Path, place: Place) -> None:
        self.name, self.path, self.place = name, path, place
        self.part: Part = shard.part
        self.space = Space(name, shard, self._rule)
        self.berths = Berths(place.shared, name, shard.part, self.space.slots)
        self.filled = threading.Event()  # the parameters have values
        self.loads = 0  # how often other values were put in their place
        self.present: dict[int, int] = {}  # worker → number of the connection that stands for it
        self.restored: dict[str, Any] | None = None  # where the values came from, when a machine was lost
        self.refused: dict[int, Disagreement] = {}  # workers that train something else
        self.offered: Recipe | None = None  # the optimizer as the first comer has it, where the space is new
        self._bringing: dict[int, set[int]] = {}  # worker → connections that brought parts
        self._lost: set[int] = set()
        self._windows: dict[int, _Window] = {}  # connection → what it read
        self._lock = threading.Lock()

    def start(self) -> None:
        if self.shard.initialised:
            self.filled.set()
        self.space.start()

    @property
    def shard(self) -> Shard:
        return self.space.shard

    # Who is here.

    def agree(self, meta: Meta) -> None:
        """Disagreement, with the first difference, for a worker that trains something else."""
        layout = Layout.from_json(meta["layout"])
        mine = self.part.layout
        difference = layout.differs(mine)
        if difference or layout != mine:
            told = difference or f"it cuts the model for {layout.servers} servers in chunks of {layout.chunk_bytes}"
            raise Disagreement(
                f"this worker's model is not the one that {self.place.name} holds: {told} ('here' is this worker); "
                "run the same script on every worker",
                difference=told,
            )
        self._agree_on_terms(meta)

    def _agree_on_terms(self, meta: Meta) -> None:
        recipe, mine = meta.get("recipe"), self.shard.recipe
        theirs = recipe["name"] if recipe else None
        _same("applier", meta.get("applier"), self.shard.applier, self.place)
        _same("optimizer", theirs, mine.name if mine else None, self.place)
        if recipe and self.offered is not None and not self.shard.version:  # later a scheduler may have been at work
            self._agree_on_recipe(Recipe.from_json(recipe), self.offered)

    def _agree_on_recipe(self, theirs: Recipe, mine: Recipe) -> None:
        _same("number of parameter groups", len(theirs.groups), len(mine.groups), self.place)
        for index, (group, held) in enumerate(zip(theirs.groups, mine.groups, strict=True)):
            for key in sorted((group.keys() & held.keys()) - set(HOW)):
                _same(f"{key} of {mine.name} (group {index})", group[key], held[key], self.place)

    def hung_up_before(self, worker: int, number: int) -> list[int]:
        """This connection stands for the worker from now on; those that brought its values before must end first."""
        with self._lock:
            old = self._bringing.pop(worker, set())
            before = self.present.get(worker)
            self.present[worker] = number
            self._lost.discard(worker)
        self.space.interrupt(worker)
        return [one for one in {*old, *([before] if before is not None else [])} if one != number]

    def welcome(self, worker: int, meta: Meta) -> Meta:
        if meta.get("remote"):
            self.berths.keep(worker)
        elif meta.get("slot"):
            self.berths.map(worker, str(meta["slot"]))
        self._count_lost(int(meta.get("version") or 0))
        last_seq, clock = self.space.join(worker, int(meta.get("clock") or 0))
        return {
            "kind": "ok",
            "version": self.shard.version,
            "segment": None if meta.get("remote") else str(self.path),
            "last_seq": last_seq,
            "clock": clock,
            "initialised": self.shard.initialised,
            "lost": self.restored["lost"] if self.restored else 0,
        }

    def leave(self, worker: int, number: int) -> None:
        """In good order: what was kept for it is given back."""
        if self._gone(worker, number):
            self.space.leave(worker, "in good order", for_good=True)
            self.berths.forget(worker)

    def hung_up(self, worker: int, number: int) -> None:
        """A connection ended; the worker with it, when this one stood for it."""
        with self._lock:
            self._bringing.get(worker, set()).discard(number)
            self._windows.pop(number, None)
        if self._gone(worker, number):
            self.space.leave(worker, "its connection ended")

    def lost(self, workers: frozenset[int]) -> None:
        """Gone for good, says the roster: also those that never came."""
        with self._lock:
            news = {one for one in workers if one not in self.present and one not in self._lost}
            self._lost |= news
        for worker in news:
            self.space.leave(worker, "the roster says that it is gone", for_good=True)
            self.berths.forget(worker)

    def filler(self, late: bool) -> int:
        """Whose values are the first ones: worker-0's; the lowest present one's when that is lost, or too late."""
        with self._lock:
            return min(self.present, default=0) if late or 0 in self._lost else 0

    def is_remote(self, worker: int) -> bool:
        return self.berths.keeps(worker)

    def _gone(self, worker: int, number: int) -> bool:
        with self._lock:
            if self.present.get(worker) != number:
                return False
            del self.present[worker]
            return True

    # What they send and read.

    def landing(self, worker: int, number: int, begin: int, count: int, size: int) -> memoryview:
        """Where values of a worker are to land, in its slot."""
        with self._lock:
            self._bringing.setdefault(worker, set()).add(number)
        view = self.berths.view(worker, begin, count)
        if view.nbytes != size:
            raise BadRequest(f"{size} bytes for {count} elements, which have {view.nbytes}; check the layout")
        return view

    def fill(self, values: memoryview, again: bool = False) -> None:
        """The first values. Those that come later change nothing, unless they are meant to (`again`)."""
        if values.nbytes != self.part.bytes:
            raise BadModel(
                f"initial values of {values.nbytes} bytes for a part of {self.part.bytes}; send the whole part"
            )

        kind = getattr(torch, self.part.layout.dtype)
        # A model smaller than the number of servers leaves some of them nothing.
        self.space.fill(torch.frombuffer(values, dtype=kind) if values.nbytes else torch.empty(0, dtype=kind), again)
        self.loads += again
        self.filled.set()

    def read(self, number: int, begin: int = 0, count: int | None = None) -> tuple[int, memoryview]:
        """Parameters as they are now, and their version, in memory that is this connection's until it reads again."""
        window = self._windows.get(number)
        if window is None:
            window = self._windows.setdefault(number, _Window(self.path))
        return window.read(begin, self.part.count - begin if count is None else count)

    def freeze(self) -> Dump:
        """The state between two updates, in memory of its own."""

        def copied() -> Dump:
            dump = self.shard.dump()
            return Dump(dump.meta, {name: one.clone() for name, one in dump.tensors.items()})

        return self.space.call(copied)

    def freeze_filled(self) -> Dump | None:
        """The same; None while there are no values yet."""
        return self.freeze() if self.shard.initialised else None

    def load(self, dumps: Sequence[Dump]) -> None:
        """Other values in place of all these. Who waits is told to push again."""
        self.space.load(dumps)
        self.loads += 1
        self.filled.set()

    def status(self) -> Meta:
        balance = self.part.layout.balance()
        return {
            **self.space.status(),
            "connected": [f"{WORKER}-{one}" for one in sorted(self.present)],
            "bytes": self.part.bytes,
            "balance": {"bytes": list(balance.bytes), "worst": balance.worst},
            "restored": self.restored,
        }

    # What came before.

    def came_from(self, what: str) -> None:
        """The values were restored after a machine was lost."""
        self.restored = {"from": what, "version": self.shard.version, "lost": 0}

    def _count_lost(self, seen: int) -> None:
        """A worker had seen a version that does not exist any more."""
        if (
            self.restored is None
            or seen <= self.shard.version
            or seen - self.restored["version"] <= self.restored["lost"]
        ):
            return
        version, label = self.restored["version"], self.restored["from"]
        self.restored["lost"] = seen - version
        told = f"versions lost: {seen - version} (a worker had seen {seen}, {label} was of {version})"
        _log.warning("%s: space %s: %s", self.place.name, self.name, told)

    def _rule(self, resume: Resume | None) -> rules.Rule:
        return rules.make(self.place.strategy.name, self.place.strategy.options, self.place.workers, resume)


def shard_for(meta: Meta, path: Path, place: Place) -> Shard:
    """A fresh shard as the first comer describes it."""
    layout = Layout.from_json(meta["layout"])
    if layout.servers != len(place.servers):
        raise Disagreement(
            f"the worker's layout is for {layout.servers} servers, the roster has {len(place.servers)}; "
            "start all of the job again"
        )
    recipe = Recipe.from_json(meta["recipe"]) if meta.get("recipe") else None
    compensate = float(place.strategy.options.get("compensate", 0.0))
    return Shard.create(path, layout.part(place.index), str(meta["applier"]), recipe, compensate)


def agree_on_strategy(meta: Meta, place: Place) -> None:
    """Disagreement for a worker that was told of another strategy."""
    mine = place.strategy
    _same("strategy", meta.get("strategy") or mine.name, mine.name, place)
    _same("options", meta.get("options") or dict(mine.options), dict(mine.options), place)


def _same(what: str, theirs: object, mine: object, place: Place) -> None:
    if theirs != mine:
        raise Disagreement(
            f"this worker's {what} is {theirs!r}, {place.name} has {mine!r}; "
            "run the same script with the same strategy on every worker",
            difference=what,
        )


class _Window:
    """Parameters as one connection reads them: while the server writes, without stopping it."""

    def __init__(self, path: Path) -> None:
        self._reader = Shard.reading(path)
        self._held = torch.empty(0, dtype=self._reader.params.dtype)
        self._pairs: list[tuple[Tensor, int, int]] = []

    def read(self, begin: int, count: int) -> tuple[int, memoryview]:
        if begin < 0 or count < 0 or begin + count > self._reader.params.numel():
            raise BadRequest(f"elements {begin}..{begin + count} are not in this part; check the layout")
        if self._held.numel() < count:
            self._held = torch.empty(count, dtype=self._held.dtype)
        target = self._held[:count]
        if [(at, size) for _, at, size in self._pairs] != [(begin, count)]:
            self._pairs = [(target, begin, count)]
        version = self._reader.copy(self._pairs)
        return version, as_bytes(target)
