"""One worker's values in a gossip: what its training adds, what its neighbours add, and that neither is ever lost.

x lies apart from the model. Training goes on with what was last read from x; at a step, the *change* since that reading
is added to x and x is read again. Neighbours add to x under the same lock, at any time. So a gradient that comes while
two workers average is in the sum like any other:  Σ x = Σ x(0) + Σ changes, whatever the order.

In pairs (AD-PSGD: Lian et al., ICML 2018, 1710.06952) both sides move by the same d = (theirs − mine)/2, one up, one
down. In shares (SGP: Assran et al., ICML 2019, 1811.10792) a part of x and of the weight w travels, and the model is
z = x/w: what is under way belongs to the sums of x and of w, and what could not be delivered is put back. A change of
the model is a change of z, so w times as much of x: where w is 1, as in step on a regular graph, that is the paper's.
Taken literally, a worker whose shares are out and whose neighbours are slow would step 1/w times too far.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.train.flat import Flat

Flats = list[Tensor]


class Replica:
    """The values of one space. Every method may be called from any thread; `step`, `reset` and `give_back` are the
    training's."""

    def __init__(self, layout: Flat) -> None:
        self.layout = layout
        self.lock = threading.Lock()
        self.x = layout.read()
        self.weight = 1.0
        self.version = 0  # how often neighbours changed x
        self._read = [one.clone() for one in self.x]  # what the model was last given
        self._read_version = 0
        self._spare = layout.empty()

    def step(self) -> int:
        """Adds what the training changed and gives the model the newest values. Returns how many changes of neighbours
        came in between: the staleness of the gradient."""
        here = self.layout.read(self._spare)
        with self.lock:
            stale = self.version - self._read_version
            if stale or self.weight != 1.0:
                torch._foreach_sub_(here, self._read)
                torch._foreach_add_(self.x, here, alpha=self.weight)
            else:
                torch._foreach_copy_(self.x, here)  # nobody else was here: exactly what the training made of it
            torch._foreach_copy_(self._read, self.x)
            if self.weight != 1.0:
                torch._foreach_div_(self._read, self.weight)
            self._read_version = self.version
        self.layout.write(self._read)
        return stale

    def reset(self, flats: Sequence[Tensor] | None = None) -> None:
        """Begins anew, with weight 1: from these values, or from those of the model."""
        with self.lock:
            if flats is None:
                self.layout.read(self.x)
            else:
                torch._foreach_copy_(self.x, list(flats))
            self.weight = 1.0
            torch._foreach_copy_(self._read, self.x)
            self._read_version = self.version
        if flats is not None:
            self.layout.write(self._read)

    def give_back(self) -> None:
        """The model gets again what it was last given, whatever was loaded into it since."""
        self.layout.write(self._read)

    def copy(self, out: Flats | None = None) -> Flats:
        """What the model would be given now: x, or x/w."""
        with self.lock:
            found = [one.clone() for one in self.x] if out is None else out
            if out is not None:
                torch._foreach_copy_(out, self.x)
            weight = self.weight
        if weight != 1.0:
            torch._foreach_div_(found, weight)
        return found

    # -- pairs ---------------------------------------------------------------------------------------------------------

    def answer(self, theirs: Flats) -> None:
        """The passive side: moves half the way towards `theirs`, which becomes the way that was gone."""
        with self.lock:
            torch._foreach_sub_(theirs, self.x)
            torch._foreach_mul_(theirs, 0.5)
            torch._foreach_add_(self.x, theirs)
            self.version += 1

    def accept(self, way: Flats) -> None:
        """The active side: goes the same way, towards the other."""
        with self.lock:
            torch._foreach_sub_(self.x, way)
            self.version += 1

    # -- shares --------------------------------------------------------------------------------------------------------

    def give(self, part: float, out: Flats) -> float:
        """Takes a part of x out, into `out`, and of the weight, which is returned."""
        with self.lock:
            torch._foreach_copy_(out, self.x)
            torch._foreach_mul_(out, part)
            torch._foreach_sub_(self.x, out)
            weight = self.weight * part
            self.weight -= weight
        return weight

    def receive(self, share: Flats, weight: float) -> None:
        """Puts a neighbour's share in, or one's own back."""
        with self.lock:
            torch._foreach_add_(self.x, share)
            self.weight += weight
            self.version += 1

    def regain(self, share: Flats, weight: float) -> None:
        """Takes the weight of a share back that was long under way to one who is gone: with the values that are here
        now; with its own only where everything else has been given away."""
        with self.lock:
            if self.weight > 0.0:
                torch._foreach_mul_(self.x, 1.0 + weight / self.weight)
            else:
                torch._foreach_add_(self.x, share)
            self.weight += weight
            self.version += 1
