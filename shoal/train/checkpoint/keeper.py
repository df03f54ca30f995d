"""The checkpoints of a run: what they hold, when they are written, and how a run goes on from one.

Workers that go in step write one checkpoint together: each its part, beside training, and the first in each folder
commits when all parts of that folder are there. Workers that go their own way commit their own: the first worker's
holds the model, those of the others (under `workers/`) what is theirs alone.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.strategy import Strategy
from shoal.train.checkpoint import beside, parts, together
from shoal.train.checkpoint.chain import Chain, Manifest
from shoal.train.checkpoint.disk import Disk
from shoal.train.checkpoint.parts import EACH, WHOLE, Item, Opened, Part
from shoal.train.checkpoint.staging import Staging
from shoal.train.checkpoint.writer import Writer
from shoal.train.choose import in_step
from shoal.train.errors import BadCheckpoint, Disagreement
from shoal.train.group.api import Group
from shoal.train.seeing import Seeing
from shoal.train.tally import Tally
from shoal.train.world import World

if TYPE_CHECKING:
    from shoal.train.checkpoint.average import Averages
    from shoal.train.unit import Unit

FOLDER = "checkpoints"
WORKERS = "workers"
APART = ("local-sgd", "easgd", "gossip")  # strategies under which every worker has a model of its own

_log = logging.getLogger("shoal.train")


@dataclass(frozen=True)
class Resumed:
    """Where a run goes on."""

    epoch: int  # the next one to do, or the one to go on with
    step: int
    tag: Any
    extra: Any  # what the script had saved besides
    path: Path


class Keeper:
    """One per run. Calls come from the training thread."""

    def __init__(
        self,
        world: World,
        strategy: Strategy,
        *,
        group: Callable[[], Group],
        seeing: Seeing,
        tally: Tally,
        unfinished: Callable[[], bool] = lambda: False,
        disk: Disk | None = None,
    ) -> None:
        self._world, self._strategy, self._group = world, strategy, group
        self._seeing, self._tally, self._unfinished = seeing, tally, unfinished
        self._in_step = world.size > 1 and in_step(strategy)
        self.apart = world.size > 1 and strategy.name in APART
        self._main = Chain(world.outputs / FOLDER, disk)
        alone = self._in_step or world.rank == 0
        self._chain = self._main if alone else Chain(self._main.folder / WORKERS / f"rank-{world.rank}", disk)
        self._items: list[Item] = []
        self._extra: Any = None
        self._opened: list[Opened] = []  # parts of the checkpoint that was resumed from: the worker's own, the first's
        self.add("extra", lambda: self._extra, lambda state: None, scope=EACH)
        self._staging, self._writer = Staging(), Writer("shoal-checkpoint")
        self._together: tuple[int, ...] | None = None  # the workers that write to this folder
        self._abandon = threading.Event()

    # -- what it holds --------------------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        state: Callable[[], Any],
        load: Callable[[Any], None],
        *,
        scope: str = WHOLE,
        file: str | None = None,
        needed: bool = False,
    ) -> None:
        """From now on checkpoints hold this. After `resume` it is loaded at once; see `Item` for the scopes. Workers in
        step add the same things in the same order."""
        item = Item(name, state, load, scope, file, needed)
        self._items.append(item)
        if self._opened:
            self._load(item)

    def add_unit(self, unit: Unit, averages: Averages | None = None) -> None:
        """The model, the optimizers and the strategy of one call of `wrap`, and averages of its weights."""
        from shoal.train.checkpoint.units import add_unit

        add_unit(self, unit, averages)

    def holds(self, prefix: str) -> bool:
        return any(item.name.startswith(prefix) for item in self._items)

    # -- saving ---------------------------------------------------------------------------------------------------

    def save(self, tag: Any = None, *, best: float | None = None, keep: int | None = 3, extra: Any = None) -> Path:
        """Writes a checkpoint beside training; returns its folder when everything is copied to host memory. Waits for
        the one before, and raises what that met. `best` is a number of which more is better: the best checkpoint is
        kept beside the last `keep` (None keeps all). Workers in step call it together."""
        with self._seeing.waiting_for("the checkpoint before this one to be written"):
            self._writer.wait()
        manifest = self._agree(tag, best)
        folder = self._chain.folder / manifest.name
        self._chain.disk.make(folder)
        self._extra = extra
        try:
            part = Part.collect(self._world.rank, self._items, self._staging, folder)
        finally:
            self._extra = None
        self._opened = []
        self._writer.begin(partial(self._write, manifest, part, keep))
        return folder

    def finish(self, ok: bool = True) -> None:
        """Waits until everything is written, and raises what that met. When the run has failed, nobody is waited for.
        Harmless twice."""
        if not ok:
            self._abandon.set()
            with suppress(Exception):
                self._writer.wait()
            return
        with self._seeing.waiting_for("the last checkpoint to be written"):
            self._writer.wait()

    def _agree(self, tag: Any, best: float | None) -> Manifest:
        """Name and number of the next checkpoint; those of the first worker, where all write one together."""
        if best is not None and math.isnan(best):
            _log.warning("checkpoint %s: its metric is not a number, and it cannot be the best", tag)
            best = None
        going_on = self._unfinished()
        wanted = f"step-{self._tally.step:08d}" if going_on else f"epoch-{self._tally.epoch:04d}"
        manifest = Manifest(
            name=self._chain.free_name(wanted),
            serial=1 + max((one.serial for one in self._chain.whole(quiet=True)), default=0),
            token=secrets.token_hex(8),
            tag=tag if isinstance(tag, (int, float, str)) else None,
            epoch=self._tally.epoch + (not going_on),
            step=self._tally.step,
            best=best,
            strategy=str(self._strategy),
            size=self._world.size,
            created=time.time(),
            gang=self._world.gang,
        )
        if not self._in_step:
            return manifest
        if self._together is None:
            self._together = together.find(self._chain.folder, self._group(), self._world.rank, self._chain.disk)
        with self._seeing.waiting_for(f"checkpoint {manifest.name} of every worker"):
            told = self._group().gather([manifest.name, manifest.serial, manifest.token, repr(tag)])
        if any(other[3] != told[0][3] for other in told):
            tags = ", ".join(str(other[3]) for other in told)
            raise Disagreement(f"workers save different checkpoints ({tags}): call run.save at the same place on all")
        name, serial, token, _ = told[0]
        return replace(manifest, name=name, serial=serial, token=token)

    def _write(self, manifest: Manifest, part: Part, keep: int | None) -> None:
        folder, rank = self._chain.folder / manifest.name, self._world.rank
        writers = self._together if self._in_step and self._together else (rank,)
        part.write(folder, manifest.token, self._chain.disk)
        if rank != writers[0]:
            return
        files = together.parts_of(writers, folder, manifest.token, self._abandon)
        self._chain.commit(replace(manifest, files=files))
        self._chain.prune(keep)

    # -- going on -------------------------------------------------------------------------------------------------

    def resume(self) -> Resumed | None:
        """Finds the newest checkpoint that is whole and loads what was added so far; the rest is loaded as it is added.
        None when there is none. Workers in step call it together."""
        found = self._agree_on_one() if self._in_step else self._newest(self._main, 0)
        if not self._in_step and self._world.rank:
            found = [*self._newest(self._chain, self._world.rank, self._limit(found)), *found]
        if not found:
            return None
        self._opened = found
        for item in self._items:
            self._load(item)
        manifest = found[0].manifest
        _log.info("goes on from %s: epoch %d, step %d", found[0].folder, manifest.epoch, manifest.step)
        extra = found[0].state("extra") if "extra" in found[0] else None
        return Resumed(manifest.epoch, manifest.step, manifest.tag, extra, found[0].folder)

    def _load(self, item: Item) -> None:
        candidates = self._opened if item.scope == EACH else self._opened[-1:]
        for opened in candidates:
            if item.name in opened:
                with beside.at(opened.folder):
                    item.load(opened.state(item.name))
                return
        where = candidates[0].folder
        if item.needed:
            raise BadCheckpoint(
                f"{where} holds no {item.name}: it is of another run; remove it, or start without resume"
            )
        if item.name != "extra":
            _log.warning("%s holds no %s: it starts anew", where, item.name)

    def _limit(self, first: list[Opened]) -> float:
        """The last epoch that a part of the worker's own may be of. Where it goes on with the first one's model, or
        with data that is dealt out anew from there, an epoch that this model has not seen must not count as done."""
        if self.apart and self._strategy.options.get("data") != "dynamic":
            return math.inf
        return first[0].manifest.epoch if first else -1

    def _newest(self, chain: Chain, rank: int, limit: float = math.inf) -> list[Opened]:
        for manifest in chain.whole():
            if manifest.epoch > limit or self._of_those_begun_with(manifest):
                continue
            try:
                return [Opened(chain.folder / manifest.name, manifest, rank)]
            except BadCheckpoint as torn:
                _log.warning("checkpoint %s is skipped: %s", chain.folder / manifest.name, torn.message)
        return []

    def _of_those_begun_with(self, manifest: Manifest) -> bool:
        """Whether somebody who began together with this worker wrote it, and was merely faster: nothing of it is this
        worker's, which has its whole share to do yet."""
        return bool(self._world.gang) and manifest.gang == self._world.gang and not self._world.starts

    def _agree_on_one(self) -> list[Opened]:
        """The newest that every worker can read. The first worker's list counts, so that all try the same ones."""
        group, known = self._group(), {one.name: one for one in self._main.whole()}
        names = group.gather(list(known))[0]
        for name in names:
            opened, why = self._try(name, known.get(name))
            told = group.gather(why)
            if not any(told):
                return opened
            who, first = next((number, one) for number, one in enumerate(told) if one)
            if self._world.rank == 0:
                _log.warning("checkpoint %s is skipped: worker-%d says: %s", self._main.folder / name, who, first)
        return []

    def _try(self, name: str, manifest: Manifest | None) -> tuple[list[Opened], str]:
        """The first worker's part and this one's, if it has one; and what is wrong with them."""
        folder, rank = self._main.folder / name, self._world.rank
        if manifest is None:
            return [], f"{folder} is not here; to resume on several nodes, put the outputs on a folder they share"
        try:
            first = Opened(folder, manifest, 0)
            if rank and parts.has_part(manifest, rank):
                return [Opened(folder, manifest, rank), first], ""
            return [first], ""
        except BadCheckpoint as wrong:
            return [], wrong.message
