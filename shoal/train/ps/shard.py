"""What one server holds of one space: parameters, optimizer state, counts, in a segment that outlives the process.

It obeys orders and decides nothing: `rules` decide. How an order survives a death is in `work`, what an update does in
`applier`, where things lie in `memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from shoal.train.errors import BadOptimizer
from shoal.train.ps.applier import ADD, APPLIERS, ELASTIC, MEAN, STEP, Add, Applier, Elastic, Mean, Mixer, Step
from shoal.train.ps.beside import Beside, beside, in_chunks
from shoal.train.ps.dump import HELD_NAME, Dump, check, move, taken
from shoal.train.ps.header import FILLED, HELD, HELD_SCALE, MAX_WORKERS, VERSION
from shoal.train.ps.layout import Part
from shoal.train.ps.memory import Memory
from shoal.train.ps.orders import Apply, Drop, Hold, Order, Resume
from shoal.train.ps.reader import Reader
from shoal.train.ps.recipe import Changes, Recipe
from shoal.train.ps.stepper import Home, Schema, Stepper
from shoal.train.ps.work import Slots, Work

__all__ = ["ADD", "ELASTIC", "MAX_WORKERS", "MEAN", "STEP", "Dump", "Reader", "Shard", "Slots"]


class Shard:
    """One space on one server. Calls that change it come from one thread at a time, together with the rule's.
    After an exception in `obey` see `pending`: what it had begun can be finished by `recover`, here or after `open`."""

    def __init__(self, memory: Memory, path: Path) -> None:
        """See `create` and `open`."""
        self._memory, self._header = memory, memory.header
        self.path = path
        self.part: Part = memory.part
        self.applier: str = memory.description["applier"]
        self.compensate: float = memory.description["compensate"]
        self.params: Tensor = memory.params  # flat over the part: what workers read (applier=mean: the mean gradient)
        self._cut = in_chunks(memory.params, memory.part)
        self._homes = [_home(memory, index) for index in range(len(self.part.chunks))]
        self._beside = Beside(path, memory.part)
        self._stepper: Stepper | None = None
        self.recipe: Recipe | None = None
        self._read_recipe()
        self._work = Work(memory, self._cut, self._make_applier(), self._beside)

    @classmethod
    def create(
        cls,
        path: str | Path,
        part: Part,
        applier: str = STEP,
        recipe: Recipe | None = None,
        compensate: float = 0.0,
    ) -> Shard:
        """A fresh one in place of any before, not yet filled. `recipe` goes with applier=step and with no other.
        NoRoom where memory is short."""
        if applier not in APPLIERS or (applier == STEP) != (recipe is not None):
            raise BadOptimizer(
                f"applier {applier!r} with recipe {recipe}: give a recipe with {STEP!r} and only with it"
            )
        schema = Schema.of(recipe, getattr(torch, part.layout.dtype)) if recipe else Schema()
        description = {
            "layout": part.layout.to_json(), "server": part.server, "applier": applier, "compensate": compensate,
            "vectors": schema.vectors, "scalars": schema.scalars,
        }  # fmt: skip
        for old in beside(Path(path)):
            old.unlink()
        memory = Memory.create(path, description, {"recipe": recipe.to_json() if recipe else None, "clock": -1})
        memory.header.seal()
        return cls(memory, Path(path))

    @classmethod
    def open(cls, path: str | Path) -> Shard:
        """The one that a process before left behind. See `pending` for an order that was cut off. BadCheckpoint for a
        file that is no shard, FileNotFoundError for none."""
        return cls(Memory.open(path), Path(path))

    @staticmethod
    def reading(path: str | Path) -> Reader:
        """For who only reads: a worker on the same node."""
        return Reader(path)

    @property
    def dtype(self) -> torch.dtype:
        return self.params.dtype

    @property
    def version(self) -> int:
        """How many updates it has seen."""
        return self._header[VERSION]

    @property
    def initialised(self) -> bool:
        return bool(self._header[FILLED])

    def fill(self, values: Tensor) -> None:
        """The initial parameters, flat over the part."""
        self._writing(lambda: self.params.copy_(values))
        self._header[FILLED] = 1

    # Orders.

    def obey(self, order: Order, slots: Slots) -> None:
        """Carries out Apply, Hold or Drop; an Answer is the server's own business. Returns when it is done and would
        survive the death of this process. KeyError, with nothing changed, if a slot is missing."""
        if isinstance(order, Drop):
            self._header.drop(order)
        elif isinstance(order, (Apply, Hold)):
            self._work.begin(order, slots)

    def pending(self) -> Apply | Hold | None:
        """An order that was cut off by the death of a process, to be finished by `recover`."""
        return self._header.intended()

    def recover(self, slots: Slots) -> bool:
        """Finishes what was cut off: restores the chunk that was being written, and does it and those after it again.
        False, with nothing done, while a slot it needs is not there. True when nothing is left to do."""
        order = self.pending()
        return order is None or self._work.finish(order, slots)

    def abandon(self) -> str:
        """Gives up what was cut off because its slots are gone for good. Undone where no chunk was whole; else the
        chunks that were written stay, and it counts. Says in words which; empty when there was nothing."""
        order = self.pending()
        return "" if order is None else self._work.abandon(order)

    def forget(self, worker: int) -> None:
        """The worker's slot is going away: nothing of it is kept mapped."""
        self._work.forget(worker)

    # Hyperparameters and members.

    def retune(self, changes: Changes, clock: int) -> bool:
        """Hyperparameters that a worker's scheduler changed at its `clock`. The schedule of the furthest counts: False,
        and nothing is changed, where somebody further has sent some. BadOptimizer for what this optimizer has not."""
        if self.recipe is None or clock < self._clock:
            return False
        recipe = self.recipe.changed(changes)
        if recipe.switches(self.recipe) and not self._memory.schema.covers(Schema.of(recipe, self.dtype)):
            raise BadOptimizer(
                f"{dict(changes)} makes {recipe.name} keep more than there is room for; "
                "give such values from the beginning (for example momentum above 0)"
            )
        self._memory.write_recipe({"recipe": recipe.to_json(), "clock": clock})
        self._take_recipe(recipe, clock)
        return True

    def remember(self, clocks: Mapping[int, int]) -> None:
        """The members and their clocks (`rule.clocks`), for `resume`. Call it when the rule is made and after join and
        leave; pushes note their own."""
        self._header.remember(clocks)

    def resume(self) -> Resume:
        """What the rule goes on from: version, last sequence numbers, clocks of members, what is held. After a restart
        ask when nothing is pending."""
        return self._header.resume()

    def note_read(self, worker: int) -> None:
        """The worker is let go and reads the parameters as they are now. Only matters with compensate > 0."""
        if self.compensate:
            self._beside.note_read(worker, self._cut)

    # As data.

    def dump(self) -> Dump:
        """Everything, for a checkpoint, a snapshot or a replica. The tensors are views: use them before the next
        `obey`."""
        return taken(self._memory, self._homes, self._beside.held if self._header[HELD] else None)

    def load(self, dumps: Sequence[Dump], memory: bool = False) -> None:
        """Takes over parameters, optimizer state and version from the dumps of all parts of the same model, cut in
        whatever way. With `memory`, from the dump of its own part alone: workers, hyperparameters and what is held,
        too. BadCheckpoint names the first difference, or what is missing."""
        check(self._memory, dumps, alone=memory)
        self._writing(lambda: move(dumps, self._memory, self._homes))
        if memory:
            self._remember_all(dumps[0])
        self._header[VERSION] = max(int(dump.meta["version"]) for dump in dumps)
        self._header[FILLED] = 1

    def close(self) -> None:
        """Lets go of the memory; the files stay. Harmless twice."""
        self._memory.segment.close()

    def unlink(self) -> None:
        """Removes its files. Harmless twice."""
        for file in (self.path, *beside(self.path)):
            file.unlink(missing_ok=True)

    def _remember_all(self, dump: Dump) -> None:
        self._memory.write_recipe({"recipe": dump.meta["recipe"], "clock": dump.meta["clock"]})
        self._read_recipe()
        self._header.restore(dump.meta["workers"])
        if dump.meta["held"]:
            self._beside.held.copy_(dump.tensors[HELD_NAME])
        self._header[HELD] = int(dump.meta["held"])
        self._header.numbers[HELD_SCALE] = dump.meta["held_scale"]

    def _writing(self, write: Callable[[], object]) -> None:
        """All chunks at once, so that no reader takes half of it."""
        self._memory.stamps[:] += 1
        with torch.no_grad():
            write()
        self._memory.stamps[:] += 1

    def _read_recipe(self) -> None:
        written = self._memory.read_recipe()
        self._take_recipe(Recipe.from_json(written["recipe"]) if written["recipe"] else None, int(written["clock"]))

    def _take_recipe(self, recipe: Recipe | None, clock: int) -> None:
        self.recipe = recipe
        self._clock = clock  # of the worker whose schedule counts
        if self._stepper is not None and recipe is not None:
            self._stepper.retune(recipe)

    def _make_applier(self) -> Applier:
        mixer = Mixer(self._cut, self.compensate)
        if self.recipe is not None:
            self._stepper = Stepper(self.recipe, self.part.chunks, self._cut, self._homes)
            return Step(self._cut, self._homes, self._stepper, mixer)
        if self.applier == ELASTIC:
            return Elastic(self._cut)
        return Add(self._cut, mixer) if self.applier == ADD else Mean(self._cut, mixer)


def _home(memory: Memory, index: int) -> Home:
    chunk, schema = memory.part.chunks[index], memory.schema
    names = schema.vectors[chunk.group] if schema.vectors else ()
    return Home(
        memory.rows[index],
        {name: memory.vectors[name][chunk.local : chunk.local + chunk.count] for name in names},
        {name: memory.scalar(index, at, dtype) for at, (name, dtype) in enumerate(schema.scalars)},
    )
