"""When a server applies what was pushed, and when a worker may go on: one `Rule` per strategy, pure.

A rule is told what happened (`join`, `leave`, `push`, `ask`) and answers with orders, to be carried out in order:
`Apply`, `Hold`, `Drop` go to the shard, `Answer` to the worker. It has no clock, no threads and no I/O. What must
survive the process is in the shard's header; `make(…, resume=shard.resume())` goes on from there.

Words: *version* counts the updates of the shard; a gradient computed on version j that arrives at version v has
staleness tau = v - j. *clock* counts the iterations a worker has **finished**. Members are the workers expected at the
start, those that joined later, less those that left or died.

Pushes are idempotent by (worker, seq): one that was taken before is answered as if it were new, but not taken again.

Servers decide each for themselves; with several of them a late gradient may count on one and be dropped on another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shoal.train.ps import scale as scales
from shoal.train.ps.orders import Answer, Apply, Contribution, Drop, Hold, Order, Resume
from shoal.train.ps.rule import Rule

__all__ = ["Answer", "Apply", "Contribution", "Drop", "Hold", "Order", "Resume", "Rule", "make"]

EASGD_FORCE = 0.9  # divided by the number of workers: the paper's choice of alpha


class Async(Rule):
    """Downpour (Dean et al. 2012): each push is applied on arrival and answered at once.

    With plain SGD w_T == w_0 - sum of scaled changes, in any order. Cost: nobody waits; tau is about workers - 1."""

    def __init__(self, workers: int, scale: scales.Scale = scales.none, resume: Resume | None = None) -> None:
        super().__init__(workers, resume)
        self._scale = scale

    def _new(self, one: Contribution) -> list[Order]:
        update = self._apply([one], scale=self._scale(one.tau))
        return [update, *self._wait_or_go(Answer(one.worker, one.seq, one.tau))]


class Gathering(Rule):
    """Rules that let pushes wait in their slots until enough have come."""

    def __init__(self, workers: int, resume: Resume | None = None) -> None:
        super().__init__(workers, resume)
        self._gathered: dict[int, Contribution] = {}

    def leave(self, worker: int) -> list[Order]:
        self._gathered.pop(worker, None)
        return super().leave(worker)

    def _new(self, one: Contribution) -> list[Order]:
        self._gathered[one.worker] = one  # the same push sent again finds its own place
        return self._released(one.worker)

    def _nothing(self, one: Contribution) -> list[Order]:
        """The others wait for it all the same, and count it as zeros."""
        return self._new(one)

    def _may_go(self, worker: int) -> bool:
        return worker not in self._gathered

    def _missing(self, worker: int) -> tuple[int, ...]:
        return tuple(one for one in self.members if one not in self._gathered)

    def _blocked(self) -> list[int]:
        return sorted(self._gathered)

    def _released(self, by: int) -> list[Order]:
        if not self._gathered or len(self._gathered) < self._enough():
            return self._let_go(by)
        taken = [self._gathered[worker] for worker in sorted(self._gathered)]
        self._gathered.clear()
        for one in taken:
            self._waiting[one.worker] = Answer(one.worker, one.seq, one.tau)
        if any(one.heads for one in taken):
            return [self._update(taken), *self._let_go(by)]
        for one in taken:  # all have skipped: nothing moves
            self.seqs[one.worker] = one.seq
        return [*map(Drop, taken), *self._let_go(by)]

    def _enough(self) -> int:
        """How many distinct workers make an update."""
        raise NotImplementedError

    def _update(self, taken: Sequence[Contribution]) -> Apply:
        return self._apply(taken, divisor=float(sum(max(1, one.heads) for one in taken)))


class Sync(Gathering):
    """Hardsync (Gupta et al. 2016): waits for every member, applies the mean once, everyone reads the same version.

    tau == 0; exactly one contribution of every member per version, added up in the order of workers, so the result is
    bit-equal from run to run. With backup = b the first members - b make the update and the rest come too late
    (Chen et al. 2016). Cost: everybody waits for the slowest (that is not a backup)."""

    def __init__(self, workers: int, backup: int = 0, resume: Resume | None = None) -> None:
        super().__init__(workers, resume)
        self._backup = backup

    def _new(self, one: Contribution) -> list[Order]:
        return self._drop(one) if one.tau else super()._new(one)

    def _enough(self) -> int:
        return max(1, len(self.clocks) - self._backup)


class Distinct(Gathering):
    """K-async (Dutta et al. 2018): an update is the mean of c pushes of distinct workers; those wait for it, the
    others compute on. `late=drop` makes it K-sync: what was computed on an older version does not count."""

    def __init__(
        self, workers: int, c: Quorum, scale: scales.Scale, keep_late: bool = True, resume: Resume | None = None
    ) -> None:
        super().__init__(workers, resume)
        self._quorum, self._scale, self._keep_late = c, scale, keep_late

    def _new(self, one: Contribution) -> list[Order]:
        return self._drop(one) if one.tau and not self._keep_late else super()._new(one)

    def _enough(self) -> int:
        members = max(1, len(self.clocks))
        return min(members, self._quorum(members))

    def _update(self, taken: Sequence[Contribution]) -> Apply:
        weighed = [replace(one, weight=self._scale(one.tau)) for one in taken]
        total = sum(one.weight for one in weighed)
        return self._apply(weighed, divisor=total, scale=total / len(weighed))


class SoftSync(Rule):
    """n-softsync (Gupta et al. 2016): an update is the mean of every c pushes, whoever they come from; nobody waits.

    pushes taken == c * version + held with 0 <= held < c; sum of tau consumed + sum over workers computing of (v - j)
    == (workers - 1) * v. c = workers is 1-softsync; c = 1 is Downpour. Each change is scaled by its own staleness:
    gradient = sum(s_l g_l) / sum(s_l), and the change is multiplied by the mean scale."""

    def __init__(
        self, workers: int, c: Quorum, scale: scales.Scale, keep_late: bool = True, resume: Resume | None = None
    ) -> None:
        super().__init__(workers, resume)
        self._quorum, self._scale, self._keep_late = c, scale, keep_late
        self.held = resume.held if resume else 0
        self._held_scale = resume.held_scale if resume else 0.0

    @property
    def c(self) -> int:
        return self._quorum(max(1, len(self.clocks)))

    def _new(self, one: Contribution) -> list[Order]:
        if one.tau and not self._keep_late:
            return self._drop(one)
        one = replace(one, weight=self._scale(one.tau))
        answer = Answer(one.worker, one.seq, one.tau)
        if self.held + 1 < self.c:
            self.held += 1
            self._held_scale += one.weight
            self.seqs[one.worker] = one.seq
            return [Hold(one), *self._wait_or_go(answer)]
        return [self._update([one]), *self._wait_or_go(answer)]

    def _update(self, last: Sequence[Contribution]) -> Apply:
        count, total = self.held + len(last), self._held_scale + sum(one.weight for one in last)
        update = self._apply(last, divisor=total, scale=total / count, held=self.held)
        self.held, self._held_scale = 0, 0.0
        return update

    def _released(self, by: int) -> list[Order]:
        """Fewer members may mean a smaller c: what is held may be enough now."""
        if self.held and self.held >= self.c:
            return [self._update([]), *self._let_go(by)]
        return self._let_go(by)


class StaleSync(Rule):
    """Stale synchronous parallel (Ho et al. 2013): applied on arrival; nobody is far ahead of the slowest.

    A worker that has finished c iterations goes on only if c - minimum <= s. So workers **computing** satisfy
    c - minimum <= s, and one that has finished and is **blocked** may be s + 1 ahead. It reads all updates of clock
    <= c - s - 1 and its own. The slowest never waits. s = inf is Downpour. Cost: waits only for those s behind."""

    def __init__(
        self, workers: int, bound: float, scale: scales.Scale = scales.none, resume: Resume | None = None
    ) -> None:
        super().__init__(workers, resume)
        self._bound, self._scale = bound, scale

    def _new(self, one: Contribution) -> list[Order]:
        update = self._apply([one], scale=self._scale(one.tau))
        return [update, *self._wait_or_go(Answer(one.worker, one.seq, one.tau))]

    def _may_go(self, worker: int) -> bool:
        return worker not in self.clocks or self.clocks[worker] - self.minimum <= self._bound

    def _missing(self, worker: int) -> tuple[int, ...]:
        mine = self.clocks[worker]
        return tuple(one for one in self.members if mine - self.clocks[one] > self._bound)


class Lockstep(Gathering):
    """SSP with s = 0, reads gated by version: what all have finished is applied together, in the order of workers.

    Every gradient counts in full, as Downpour adds them up: with a learning rate of lr / workers the weights are those
    of hardsync with lr. (Applied on arrival, updates of the same clock would leak into the reads of the slower.)"""

    def _enough(self) -> int:
        return len(self.clocks)

    def _update(self, taken: Sequence[Contribution]) -> Apply:
        return self._apply(taken)


class Elastic(Rule):
    """EASGD (Zhang, Choromanska, LeCun 2015), asynchronous: d = alpha (x - centre); the centre moves by d at once.

    The server puts d where x was; the worker takes it off. x + centre is conserved; the gap shrinks by 1 - 2 alpha."""

    def __init__(self, workers: int, alpha: float, resume: Resume | None = None) -> None:
        super().__init__(workers, resume)
        self._alpha = alpha or EASGD_FORCE / max(1, workers)

    def _new(self, one: Contribution) -> list[Order]:
        return [self._apply([one], scale=self._alpha), *self._wait_or_go(Answer(one.worker, one.seq, one.tau))]


Quorum = Callable[[int], int]  # members → pushes to an update


def quorum(c: int = 0, n: int = 0) -> Quorum:
    """c as given; else floor(members / n); else all members."""
    if c:
        return lambda members: c
    return lambda members: max(1, members // n) if n else members


def make(name: str, options: Mapping[str, Any], workers: int, resume: Resume | None = None) -> Rule:
    """The rule of a strategy by its name, with every option of `shoal.strategy`; `workers` are expected at the start
    (those never come must be told by `leave`). `resume` is what `shard.resume()` gives after a restart."""
    scale = scales.of(options)
    if name == "ps-sync":
        return Sync(workers, int(options["backup"]), resume)
    if name == "ps-async":
        return Async(workers, scale, resume)
    if name == "ps-softsync":
        kind = Distinct if options["distinct"] else SoftSync
        return kind(workers, quorum(options["c"], options["n"]), scale, options["late"] == "keep", resume)
    if name == "ps-ssp":
        bound = options["staleness"]
        return StaleSync(workers, bound, scale, resume) if bound else Lockstep(workers, resume)
    if name == "easgd":
        return Elastic(workers, float(options["alpha"]), resume)
    raise ValueError(f"strategy {name!r} has no parameter servers; use a ps-* strategy or easgd")
