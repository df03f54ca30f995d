"""What travels around one step of one optimizer, when servers hold the parameters. Who steps makes the difference.

`Stepped`: the servers do; gradients go up. `Summed`: the worker does; the change it made goes up and is added (BytePS,
OSDI'20, theorem 2). `Averaged`: the worker does, all workers alike; the mean gradient comes down. The first needs an
optimizer that a server can run, the others take any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from shoal.train.errors import BadModel, BadOptimizer
from shoal.train.ps.applier import ADD, MEAN, STEP
from shoal.train.ps.client import Named, Portion
from shoal.train.ps.counterpart import NOTHING, PARAMS
from shoal.train.ps.pull import Landing
from shoal.train.ps.recipe import Recipe


class Way:
    """One optimizer of a unit. `before` and `after` its step, `flush` at the end."""

    applier: str
    pushes_gradients: bool  # so that a closure must be evaluated before the step
    kept = True  # what the servers hold belongs to a checkpoint

    def __init__(self, portion: Portion, optimizer: Optimizer) -> None:
        self.portion, self.optimizer = portion, optimizer
        self._known = frozenset(id(one.tensor) for one in portion.members)
        self._marks: list[int] | None = None  # versions of the parameters when they were last read, before any step
        self._steps = 0  # since the beginning, also before a restart

    def start(self) -> None:
        """The parameters as the servers have them."""
        self.portion.pull()
        self._marks = self._versions()

    def ready(self, first: bool) -> None:
        """Before every step. Weights that were loaded after `wrap` would be lost with the first read: those of the
        first worker go to the servers."""
        self._check()
        if self._marks is not None:
            if first and self.portion.fresh and self._marks != self._versions():
                self.portion.refill()
            self._marks = None

    def loaded(self) -> None:
        """The servers have taken the state of a checkpoint."""
        self.portion.pull()
        self._marks = None

    def before(self, skipped: bool = False) -> None:
        """The gradients are final; or, `skipped`, all of them are zeros that stand for none."""

    def after(self) -> None:
        """The optimizer has stepped, with what it was left."""

    def flush(self) -> None:
        """No more steps: what was not pushed yet goes now."""

    def phase(self) -> dict[str, Any]:
        """For a checkpoint: where this worker stands between two exchanges."""
        return {"steps": self._steps}

    def resume(self, phase: Mapping[str, Any]) -> None:
        """The opposite, after `loaded`."""
        self._steps = int(phase["steps"])

    @property
    def bytes_per_step(self) -> float:
        return float(self.portion.layout.bytes)

    def _versions(self) -> list[int]:
        return [one.tensor._version for one in self.portion.members]

    def _check(self) -> None:
        """BadModel when the optimizer steps other parameters than were agreed on: they would silently drift apart."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and id(parameter) not in self._known:
                    raise BadModel(
                        f"a parameter of shape {tuple(parameter.shape)} is trained now and was not when wrap was "
                        "called, so the servers know nothing of it: unfreeze or add it before wrap"
                    )


class Intervals(Way):
    """Steps between two pushes, and between two reads (Downpour has both as 1)."""

    def __init__(self, portion: Portion, optimizer: Optimizer, push: int = 1, fetch: int = 1) -> None:
        super().__init__(portion, optimizer)
        self._push_every, self._fetch_every = push, fetch
        self._bases: dict[int, int] | None = None  # versions behind what lies in the slot; None while it holds nothing
        self._empty = True  # nothing but skipped steps lies there
        self._taken_off = False  # the slot holds the change so far, less the parameters

    def phase(self) -> dict[str, Any]:
        """With what was added up and not pushed yet. (While the parameters are taken off, it makes no sense alone.)"""
        phase = super().phase()
        if self._bases is not None and not self._taken_off:
            phase |= {"slot": self.portion.slot.flat.clone(), "servers": len(self.portion.servers)}
        return phase

    def resume(self, phase: Mapping[str, Any]) -> None:
        super().resume(phase)
        if "slot" in phase and phase["servers"] == len(self.portion.servers):  # else it lies in another order
            self.portion.slot.flat.copy_(phase["slot"])
            self.portion.slot.taint()
            self._bases, self._empty = self.portion.versions, False

    def _begin_step(self) -> None:
        self._steps += 1
        if self._bases is None:
            self._bases = self.portion.versions
            if self._push_every > 1:
                self.portion.slot.clear_all()

    @property
    def _pushes(self) -> bool:
        return self._steps % self._push_every == 0

    @property
    def _fetches(self) -> bool:
        return self._steps % self._fetch_every == 0

    def _push(self, recipe: Recipe | None = None, want: str = "") -> None:
        want = want or (PARAMS if self._fetches else NOTHING)
        self.portion.push(want, self._bases, recipe, empty=self._empty)
        self._bases, self._empty = None, True

    @property
    def bytes_per_step(self) -> float:
        return self.portion.layout.bytes / self._push_every


class Stepped(Intervals):
    """The servers hold the optimizer; the worker's own finds no gradients and leaves the parameters alone. Between two
    reads it steps by itself, so that the worker goes on from where its own gradients lead."""

    applier = STEP
    pushes_gradients = True

    def __init__(self, portion: Portion, optimizer: Optimizer, push: int = 1, fetch: int = 1) -> None:
        super().__init__(portion, optimizer, push, fetch)
        self._away: list[tuple[Tensor, Tensor]] = []  # parameters and their gradients, during the step

    def before(self, skipped: bool = False) -> None:
        self._begin_step()
        self._empty = self._empty and skipped
        if self._push_every == 1:
            self.portion.lay_gradients()
        else:
            self.portion.add([one.tensor.grad for one in self.portion.members])
        if self._pushes:
            self._push(Recipe.of(self.optimizer))
        if self._fetches:
            self._take_away()

    def after(self) -> None:
        if self._fetches:
            self.portion.pull(pushed=self._pushes)
        for parameter, gradient in self._away:
            parameter.grad = gradient
        self._away = []

    def flush(self) -> None:
        if self._bases is not None:
            self._push(want=NOTHING)
        self.portion.pull()

    def _take_away(self) -> None:
        self._away = [(one.tensor, one.tensor.grad) for one in self.portion.members if one.tensor.grad is not None]
        for parameter, _ in self._away:
            parameter.grad = None


class Summed(Intervals):
    """The worker steps; the servers add up what all of them changed."""

    applier = ADD
    pushes_gradients = False

    def before(self, skipped: bool = False) -> None:
        self._begin_step()
        self._empty = self._empty and skipped
        if self._taken_off:
            return
        if self._push_every == 1:
            self.portion.slot.clear_all()
        self.portion.add(self._values(), -1.0)
        self._taken_off = True

    def after(self) -> None:
        if not (self._pushes or self._fetches):
            return
        self._put_on()
        if self._pushes:
            self._push()
        if self._fetches:
            self.portion.pull(pushed=self._pushes)

    def flush(self) -> None:
        if self._bases is not None:
            self._put_on()
            self._push(want=NOTHING)
        self.portion.pull()

    def _put_on(self) -> None:
        if self._taken_off:
            self.portion.add(self._values())
            self._taken_off = False

    def _values(self) -> list[Tensor]:
        return [one.tensor for one in self.portion.members]


class Averaged(Way):
    """Every worker steps with the same mean gradient, so all stay equal. A parameter without a gradient here may have
    one elsewhere: it counts as zero, and gets the mean."""

    applier = MEAN
    pushes_gradients = True
    kept = False  # nothing but the last mean

    def start(self) -> None:
        """The servers hold the parameters only until the first mean takes their place."""
        if not self.portion.fresh:
            raise BadOptimizer(
                f"{type(self.optimizer).__name__} steps on the workers, so the servers have no parameters for one that "
                "joins a training under way: start all workers again, from a checkpoint, or use an optimizer that a "
                "server can run (SGD, Adam, …)"
            )
        super().start()

    def ready(self, first: bool) -> None:
        self._check()

    def loaded(self) -> None:
        """Everybody has read the same parameters."""

    def before(self, skipped: bool = False) -> None:
        self.portion.lay_gradients()
        self.portion.push(PARAMS, empty=skipped)
        gradients = [_gradient(one) for one in self.portion.members]
        self.portion.pull(Landing(self.portion.layout, gradients), pushed=True)


def _gradient(one: Named) -> Tensor:
    if one.tensor.grad is None or one.tensor.grad.is_sparse:
        one.tensor.grad = one.tensor.detach().clone()
    return one.tensor.grad
