"""What an update does to a chunk: `step` an optimizer, `add` a change, pull `elastic`ally, or give the `mean` back.

Each says which ranges of memory it will change (they are journaled first) and then changes them. Doing it a second time
after those ranges were restored gives the same result: that is what makes a push count exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from shoal.train.ps.orders import Apply, Contribution
from shoal.train.ps.stepper import Home, Stepper

STEP, ADD, ELASTIC, MEAN = "step", "add", "elastic", "mean"
APPLIERS = (STEP, ADD, ELASTIC, MEAN)

Cut = Sequence[Tensor]  # a flat tensor over the part, cut into chunks


class Sources(Protocol):
    """Where an update reads: slots by worker, and what is held."""

    @property
    def slots(self) -> Mapping[int, Cut]: ...

    @property
    def held(self) -> Cut | None: ...

    def read(self, worker: int) -> Cut | None:
        """The parameters as the worker had read them, where that was noted."""
        ...


class Applier(Protocol):
    def changes(self, index: int, order: Apply, sources: Sources) -> list[Tensor]:
        """What `write` will change of the chunk; the parameters first."""
        ...

    def write(self, index: int, order: Apply, sources: Sources, before: Tensor | None) -> None:
        """Carries the order out on one chunk. `before` are its parameters as they were, where `changes` named them."""
        ...


class Mixer:
    """Makes one gradient out of contributions: (held + sum of weight * g) / divisor, added up in their order."""

    def __init__(self, params: Cut, compensate: float = 0.0) -> None:
        longest = max((len(one) for one in params), default=0)
        dtype = params[0].dtype if params else torch.float32
        self._params, self._compensate = params, compensate
        self._sum = torch.empty(longest, dtype=dtype)

    def gradient(self, index: int, order: Apply, sources: Sources, out: Tensor | None = None) -> Tensor:
        """The slot itself where nothing is to be done to it, else `out` or a buffer that the next call uses again."""
        terms = [(one.weight, self._term_of(index, one, sources)) for one in order.contributions]
        if sources.held is not None and order.held:
            terms.insert(0, (1.0, sources.held[index]))
        if out is None and len(terms) == 1 and terms[0][0] == order.divisor and not self._compensate:
            return terms[0][1]
        total = self._sum[: len(self._params[index])] if out is None else out
        _add_up(terms, total)
        return total if order.divisor == 1.0 else total.div_(order.divisor)

    def _term_of(self, index: int, one: Contribution, sources: Sources) -> Tensor:
        gradient = sources.slots[one.worker][index]
        seen = sources.read(one.worker) if self._compensate else None
        if seen is None:
            return gradient
        # g + l g g (w - w_read), Zheng et al. 2017. With several contributions each needs memory of its own.
        moved = torch.sub(self._params[index], seen[index])
        return moved.mul_(gradient).mul_(gradient).mul_(self._compensate).add_(gradient)


def _add_up(terms: Sequence[tuple[float, Tensor]], out: Tensor) -> None:
    weight, first = terms[0]
    if len(terms) > 1 and weight == 1.0:
        second, term = terms[1]
        torch.add(first, term, alpha=second, out=out)
        rest = terms[2:]
    else:
        torch.mul(first, weight, out=out)
        rest = terms[1:]
    for weight, term in rest:
        out.add_(term, alpha=weight)


class Step:
    """The user's optimizer; the change it makes is scaled afterwards, so its state and its rate know nothing of it."""

    def __init__(self, params: Cut, homes: Sequence[Home], stepper: Stepper, mixer: Mixer) -> None:
        self._params, self._homes, self._stepper, self._mixer = params, homes, stepper, mixer

    def changes(self, index: int, order: Apply, sources: Sources) -> list[Tensor]:
        home = self._homes[index]
        return [self._params[index], *(home.vectors.values() if home.row[0] else ())]

    def write(self, index: int, order: Apply, sources: Sources, before: Tensor | None) -> None:
        self._stepper.step(index, self._mixer.gradient(index, order, sources))
        if order.scale != 1.0 and before is not None:
            self._params[index].sub_(before).mul_(order.scale).add_(before)


class Add:
    """Workers step by themselves and push the change they want (BytePS, theorem 2): it is added."""

    def __init__(self, params: Cut, mixer: Mixer) -> None:
        self._params, self._mixer = params, mixer

    def changes(self, index: int, order: Apply, sources: Sources) -> list[Tensor]:
        return [self._params[index]]

    def write(self, index: int, order: Apply, sources: Sources, before: Tensor | None) -> None:
        self._params[index].add_(self._mixer.gradient(index, order, sources), alpha=order.scale)


class Elastic:
    """d = alpha (x - centre): the centre moves by d, and d is left where x was, for the worker to take off."""

    def __init__(self, params: Cut) -> None:
        self._params = params

    def changes(self, index: int, order: Apply, sources: Sources) -> list[Tensor]:
        return [self._params[index], sources.slots[order.contributions[0].worker][index]]

    def write(self, index: int, order: Apply, sources: Sources, before: Tensor | None) -> None:
        position = sources.slots[order.contributions[0].worker][index]
        position.sub_(self._params[index]).mul_(order.scale)
        self._params[index].add_(position)


class Mean:
    """Workers step by themselves, all alike: the mean gradient is put where they read. Nothing of before is needed."""

    def __init__(self, params: Cut, mixer: Mixer) -> None:
        self._params, self._mixer = params, mixer

    def changes(self, index: int, order: Apply, sources: Sources) -> list[Tensor]:
        return []

    def write(self, index: int, order: Apply, sources: Sources, before: Tensor | None) -> None:
        self._mixer.gradient(index, order, sources, out=self._params[index])
