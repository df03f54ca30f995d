"""A run: where a script meets its strategy. Small calls that each hand over to the part that knows.

`wrap` puts a strategy around a model and its optimizers, `shard` and `stream` cut the data, `report` tells, `save`
keeps, `close` leaves the others in good order. In a world of one nothing is exchanged and nothing is changed.
"""

from __future__ import annotations

import atexit
import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shoal import contract
from shoal.strategy import Strategy
from shoal.train import house, tables, voice
from shoal.train import unit as units
from shoal.train.api import Partition, Setting, Synchroniser
from shoal.train.checkpoint import Averages, Keeper, Publisher, Resumed
from shoal.train.checkpoint.publish import FOLDER as PUBLISHED
from shoal.train.choose import device_of, in_step, resumes, strategy_of
from shoal.train.data import Feed
from shoal.train.errors import TrainError
from shoal.train.explain import Explanation, banner, explain
from shoal.train.finite import Finite
from shoal.train.group.api import Group
from shoal.train.hooks import Hooks
from shoal.train.meet import Meeting, meet
from shoal.train.report import Reporter
from shoal.train.seeing import Seeing
from shoal.train.steps import Steps
from shoal.train.stop import Stop
from shoal.train.strategies import PARTITIONS, SYNCHRONISERS
from shoal.train.tally import Tally
from shoal.train.unit import Unit, scalar
from shoal.train.watch import Watch
from shoal.train.world import World

if TYPE_CHECKING:
    from shoal.train.embedding import Tables

_Module = TypeVar("_Module", bound=nn.Module)
_log = logging.getLogger("shoal.train")
_open: list[Run] = []  # a process has one run at a time
_before = 0  # runs that this process had
UNITS = 1000  # numbers that a run has for its calls of wrap


def begin(strategy: str | None, *, servers: int, device: str | None, resume: bool | None) -> Run:
    """What `train.start` does: reads the world, meets the others, and opens the run."""
    if _open:
        raise TrainError("this process has a run already: end it first, as `with train.start() as run:` does")
    voice.clear()
    world, chosen = strategy_of(World.read(), strategy)
    where = device_of(world, device)
    world, meeting = meet(_numbered(world), chosen.kind.servers, servers)
    try:
        return Run(world, chosen, where, meeting, resumes(world, resume))
    except BaseException:
        meeting.close(ok=False)
        raise


def _numbered(world: World) -> World:
    """A script may have several runs, one after another, as for the parts of a cross-validation: the second one must
    not find what the first one left with the others, nor, in a job, go on from its checkpoints."""
    global _before
    if world.alone and world.source != "shoal":
        return world
    serial, _before = _before, _before + 1
    own = world.outputs / f"run-{serial + 1}" if serial and world.source == "shoal" else world.outputs
    return replace(world, serial=serial, outputs=own)


class Run:
    """One worker's part in a training. Made by `train.start()`, used as a context."""

    def __init__(
        self,
        world: World,
        strategy: Strategy,
        device: torch.device,
        meeting: Meeting | None = None,
        resume: bool = False,
    ) -> None:
        self.world, self.strategy, self.device = world, strategy, device
        self.seeing, self.tally = Seeing(), Tally()
        self.units: list[Unit] = []
        self._meeting = meeting or Meeting()
        self._hooks: list[Hooks] = []
        self._tables: list[Tables] = []
        self._groups: dict[str, Group] = {}
        self._publisher: Publisher | None = None
        self._closed = False
        told = world.source == "shoal" or contract.OUTPUTS in world.variables
        agree = self._any_found if strategy.kind.family == "partition" and world.size > 1 else None
        self._finite = Finite(str(strategy.options.get("nan", "warn")), self._names, agree)
        self._report = Reporter(world, self.tally, self.seeing, written=told, printed=told, heard=self._finite.reported)
        # A group of its own: that of all workers may be busy in another thread when the script asks.
        together = world.size > 1 and in_step(strategy)
        self._stop = Stop((lambda: self.group("stop")) if together else None)
        self._watch = Watch(world, self.seeing)
        parts: dict[str, Any] = {"group": lambda: self.group("data"), "seeing": self.seeing, "tally": self.tally}
        self._feed = Feed(world, strategy, place=lambda: (self.replica, self.replicas), stop=self.should_stop, **parts)
        self._keeper = Keeper(world, strategy, unfinished=self._feed.unfinished, **parts)
        self._steps = Steps(world, strategy, self.tally, self.seeing, self.units, lambda: self.replicas)
        self._begin(resume)

    def _begin(self, resume: bool) -> None:
        if not self.world.alone:
            self._watch.start()
        self._keeper.add("feed", self._feed.state, self._feed.load, scope="each")
        self.resumed: Resumed | None = self._keeper.resume() if resume else None
        if self.resumed:
            self.tally.epoch, self.tally.step = self.resumed.epoch, self.resumed.step
        self._first_epoch = self.tally.epoch
        _open.append(self)
        atexit.register(self._at_exit)

    # -- where one is --------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This worker's number among the workers."""
        return self.world.rank

    @property
    def size(self) -> int:
        """How many workers there are."""
        return self.world.size

    @property
    def epoch(self) -> int:
        return self.tally.epoch

    @property
    def replica(self) -> int:
        """Which copy of the model this worker belongs to; the data is cut by copies."""
        partition = self._partition()
        return partition.replica if partition else self.rank

    @property
    def replicas(self) -> int:
        partition = self._partition()
        return partition.replicas if partition else self.size

    def group(self, name: str = "all") -> Group:
        """The group of all workers, made when first asked for; another name, another group of all. Collective."""
        if name not in self._groups:
            from shoal.train.group.choose import make

            serial = self.world.serial
            self._groups[name] = make(self.world, self.seeing, f"{name}-{serial}" if serial else name)
        return self._groups[name]

    # -- training ------------------------------------------------------------------------------------------------------

    def wrap(self, model: _Module, *optimizers: Optimizer) -> tuple[Any, ...]:
        """`model, optimizer = run.wrap(model, optimizer)`: the model to call, and the same optimizers. From now on
        their `step()` exchanges. Refuses what cannot be trained; Disagreement when workers wrap different models."""
        self._must_be_open()
        units.check(model, optimizers, self.units)
        setting = self._setting()
        unit = self._unit(model, optimizers, setting)
        self.units.append(unit)
        for optimizer in optimizers:
            first = unit.number == 0 and optimizer is optimizers[0]
            self._hooks.append(Hooks(optimizer, unit.sync, self._finite, self._steps.stepped if first else _nothing))
        self._keeper.add_unit(unit, averages=self._steps.average(unit))
        self._tables += filter(None, [tables.connect(unit, setting, self._keeper)])
        if not self.world.alone and self.rank == 0:
            _log.info(banner(self.world, self.strategy, self.tally, unit, self.replicas))
        self.seeing.begin()
        return (unit.model, *optimizers)

    def step(self, model: nn.Module, loss_fn: Callable[..., Tensor], *batch: Any) -> Tensor:
        """`loss = run.step(model, loss_fn, x, y)`: forward, backward, the step of the model's optimizers and zero_grad.
        Everything before the last argument goes to the model; the loss is `loss_fn(output, last)`."""
        unit = units.find(self.units, model)
        if len(batch) < 2:
            raise TrainError(
                f"run.step was given {len(batch)} of input and target: write run.step(model, loss_fn, x, y)"
            )
        *inputs, target = batch
        if unit.partition:
            loss = unit.partition.step(unit.model, loss_fn, inputs, target)
        else:
            loss = scalar(loss_fn(unit.model(*inputs), target), "run.step")
            loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in unit.optimizers:
            optimizer.step()
        for optimizer in unit.optimizers:
            optimizer.zero_grad()
        return loss.detach()

    def mark(self, module: _Module) -> _Module:
        """A pipeline may be cut before this module; the same module back. Read with `split=marks`."""
        module._shoal_mark = True  # type: ignore[assignment]
        return module

    # -- data and epochs -----------------------------------------------------------------------------------------------

    def shard(self, loader: Iterable[Any], **options: Any) -> Iterable[Any]:
        """This worker's part of a DataLoader, or of any iterable of batches."""
        return self._feed.shard(loader, **options)

    def stream(self, source: Iterable[Any], **options: Any) -> Iterator[Any]:
        """Input without end, this worker's part. The model is published after every `every=` batches."""
        return self._feed.stream(source, **{"publish": self.publish, **options})

    def publish(self, step: int | None = None) -> None:
        """The weights of the first model as a file of their own under the outputs, for those who use it meanwhile."""
        if not self.units:
            return
        if self._publisher is None:
            self._publisher = publisher(self.world, self.units[0], self._steps.averages)
        self._publisher(self.tally.step if step is None else step)

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs that are still to do: after a restart it goes on where the checkpoint stands."""
        self.tally.epochs = count
        self._feed.settle()
        for epoch in range(self._first_epoch, count):
            if epoch != self.tally.epoch:
                self.tally.begin_epoch(epoch)
            yield epoch
            self._steps.epoch_over()
        self.tally.begin_epoch(count)

    # -- telling, keeping, stopping ------------------------------------------------------------------------------------

    def report(self, **values: Any) -> None:
        """Numbers worth following, such as loss: kept, and written at a bounded rate; a call costs next to nothing."""
        self._report(values)

    def save(self, tag: Any = None, **options: Any) -> None:
        """A checkpoint, whole or not at all. Returns when the state is copied to host memory. Collective."""
        self._must_be_open()
        if not self._feed.unfinished():
            self._steps.epoch_over()
        self._keeper.save(tag, **options)

    def averaged(self, model: nn.Module | None = None) -> dict[str, Tensor]:
        """The averaged weights of a wrapped model, the first one unless said: a state dict. Collective where the model
        is cut into parts."""
        unit = units.find(self.units, model if model is not None else self.units[0].model if self.units else None)
        averages = self._steps.averages_of(unit)
        if averages is None:
            raise TrainError(f"{self.strategy} keeps no averages: run it with average=ema or average=swa")
        return averages.weights()

    def remember(self, **things: Any) -> None:
        """What else a checkpoint holds: things with `state_dict` and `load_state_dict`, such as a scheduler. Those of
        the checkpoint that was resumed from are loaded at once."""
        for name, thing in things.items():
            self._keeper.add(f"own.{name}", thing.state_dict, thing.load_state_dict, scope="whole")

    def should_stop(self) -> bool:
        """Whether somebody asked the job to end: save and leave then. Workers that go in step all get the same answer,
        so each of them must ask equally often."""
        return self._stop()

    def explain(self) -> Explanation:
        """What this run does: global batch, who scales the learning rate, staleness to expect, bytes per step."""
        return explain(self.world, self.strategy, self.tally, self.units, self.replicas)

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self, ok: bool = True) -> None:
        """Leaves the others in good order; with `ok=False`, as after an error, without a word, so that they notice.
        Harmless twice."""
        if self._closed:
            return
        self._closed = True
        _open.remove(self)
        atexit.unregister(self._at_exit)
        carriers: list[Synchroniser | Partition | None] = [unit.sync or unit.partition for unit in self.units]
        last: list[Callable[[], Any]] = [self._report.close, lambda: self._keeper.finish(ok)]
        last += [self._publisher.finish] if self._publisher else []
        if ok:
            last += [self._feed.finish, *(carrier.finish for carrier in carriers if carrier)]
            last += [one.close for one in self._tables]
            last += [group.leave for group in self._groups.values()]
        last += [*(hooks.remove for hooks in self._hooks), lambda: house.close(self.world)]
        last += [self._stop.close, self._watch.close, lambda: self._meeting.close(ok)]
        _all(last, ok)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        clean_exit = isinstance(error, SystemExit) and not error.code
        self.close(ok=error is None or clean_exit)

    def _at_exit(self) -> None:
        """For a script without `with`: an error that ended it has been printed by now, and left a trace here."""
        self.close(ok=getattr(sys, "last_type", None) is None)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _unit(self, model: nn.Module, optimizers: tuple[Optimizer, ...], setting: Setting) -> Unit:
        """The model with what carries the strategy out for it; nothing does in a world of one."""
        unit, name = Unit(len(self.units), model, model, optimizers), self.strategy.name
        if self.world.alone:
            return unit
        if self.strategy.kind.family == "partition":
            unit.partition = PARTITIONS.load(name)(setting)
            unit.model = unit.partition.attach(model, optimizers)
        else:
            unit.sync = SYNCHRONISERS.load(name)(setting)
            unit.model = unit.sync.attach(model, optimizers)
        return unit

    def _setting(self) -> Setting:
        return Setting(
            world=self.world,
            options=self.strategy.options,
            group=self.group,
            seeing=self.seeing,
            unit=UNITS * self.world.serial + len(self.units),
            epoch=lambda: self.tally.epoch,
        )

    def _any_found(self, found: bool) -> bool:
        return any(self.group("finite").gather(int(found)))

    def _partition(self) -> Partition | None:
        return self.units[0].partition if self.units else None

    def _names(self, parameters: Any) -> list[str]:
        for unit in self.units:
            found = units.names(unit.given, parameters)
            if "?" not in found:
                return found
        return ["?" for _ in parameters]

    def _must_be_open(self) -> None:
        if self._closed:
            raise TrainError("this run has ended: call train.start() for another")


def publisher(world: World, unit: Unit, averages: Averages | None) -> Publisher:
    """Publishes the averaged weights where there are some, else the model's. The first worker writes."""
    partition, model = unit.partition, unit.model
    weights: Callable[[], Any] = model.state_dict if partition is None else lambda: partition.model_state(model)
    return Publisher(
        world.outputs / PUBLISHED,
        averages.weights if averages else weights,
        writes=world.rank == 0,
        collective=partition is not None,
    )


def _nothing() -> None:
    """Steps of all optimizers but the first are not counted."""


def _all(calls: list[Callable[[], Any]], ok: bool) -> None:
    """Every one of them, whatever the others do; then the first error, unless another one is under way already."""
    first: BaseException | None = None
    for call in calls:
        try:
            call()
        except Exception as error:
            first = first or error
            if not ok:
                _log.warning("while the run ended: %s", error)
    if first and ok:
        raise first
