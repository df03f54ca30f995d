"""Gradients that are not numbers, and what is done about them: warn, skip the step, or stop.

`warn` looks now and then and when a loss that was reported is not finite, so that it costs nothing to speak of; `skip`
and `stop` look at every step. A worker that skips still takes part in the exchange, with a gradient of zero: the others
must not wait for one who thinks that there is nothing to say.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from shoal.train.errors import NotFinite
from shoal.train.unit import MOST_NAMED, trained

WARN, SKIP, STOP = "warn", "skip", "stop"
FIRST_LOOKS = 3  # steps that `warn` looks at one by one
EVERY = 64  # steps between two later looks

_log = logging.getLogger("shoal.train")


class Finite:
    """The policy of one run. `names` tells what a parameter is called. `agree` is given this worker's finding and tells
    whether anyone found the like: where each holds a part of the model, they skip together or not at all."""

    def __init__(
        self,
        policy: str,
        names: Callable[[Sequence[Tensor]], list[str]],
        agree: Callable[[bool], bool] | None = None,
    ) -> None:
        self.policy = policy
        self._agree = agree if policy == SKIP else None
        self.skipped = 0
        self._names = names
        self._steps, self._next = 0, 1  # seen so far; the one that `warn` looks at next
        self._warned = 0

    def reported(self, value: Any) -> None:
        """A value the script reported: one that is not finite makes `warn` look at the next step."""
        if isinstance(value, float) and not math.isfinite(value):
            self._next = 0

    def allows(self, optimizer: Optimizer) -> bool:
        """Whether the optimizer may step with its gradients; False when the step is to be skipped. NotFinite raised."""
        if self.policy == WARN:
            self._steps += 1
            if self._steps < self._next:
                return True
            few = self._steps < FIRST_LOOKS
            self._next = self._steps + 1 if few else (self._steps // EVERY + 1) * EVERY
        wrong = _not_finite(trained(optimizer))
        if self._agree is not None and self._agree(bool(wrong)) and not wrong:
            self.skipped += 1
            return False
        if not wrong:
            return True
        told = self._told(wrong)
        if self.policy == STOP:
            raise NotFinite(f"{told}; lower the learning rate or clip, or go on with nan=skip or nan=warn")
        self._say(told)
        self.skipped += self.policy == SKIP
        return self.policy == WARN

    def _told(self, wrong: Sequence[Tensor]) -> str:
        named = self._names(wrong)
        more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
        return f"the gradient of {', '.join(named[:MOST_NAMED])}{more} is not finite"

    def _say(self, told: str) -> None:
        """At the 1st, 10th, 100th … time."""
        self._warned += 1
        if math.log10(self._warned).is_integer():
            does = "the step is skipped" if self.policy == SKIP else "the step is taken all the same (nan=warn)"
            _log.warning("%s; %s (time %d)", told, does, self._warned)


def _not_finite(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Those whose gradient holds a NaN or an infinity. A sum reads each gradient once; only where that is not finite,
    which also a large but finite gradient may cause, is every number looked at."""
    with torch.no_grad():
        grads = [(one, _own(one.grad)) for one in parameters if one.grad is not None]
        sums: dict[torch.device, list[Tensor]] = {}
        for _, grad in grads:
            sums.setdefault(grad.device, []).append(grad.sum().to(torch.float64))
        if all(bool(torch.isfinite(torch.stack(some).sum())) for some in sums.values()):
            return []
        return [one for one, grad in grads if not bool(torch.isfinite(grad).all())]


def _own(grad: Tensor) -> Tensor:
    """What is looked at: the rows of a sparse gradient, this worker's part of one that is cut over several. The others
    are never asked about theirs: `warn` may look at other times there."""
    if grad.is_sparse:
        return grad.coalesce().values()
    local: Callable[[], Tensor] | None = getattr(grad, "to_local", None)
    return grad if local is None else local()
