"""What all rules share: members, sequence numbers, clocks, and the waiting. See `rules` for what they differ in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shoal.train.ps.orders import Answer, Apply, Contribution, Drop, Order, Resume


class Rule:
    """What all strategies share: members, sequence numbers, clocks, and the waiting."""

    def __init__(self, workers: int, resume: Resume | None = None) -> None:
        resume = resume or Resume()
        self.version = resume.version
        self.clocks = dict(resume.clocks) or dict.fromkeys(range(workers), 0)  # of members
        self.seqs = dict(resume.seqs)
        self._waiting: dict[int, Answer] = {}
        self._floor = min(self.clocks.values(), default=0)  # the minimum when there was last a member

    # What can happen.

    def join(self, worker: int, clock: int = 0) -> list[Order]:
        """A member from now on; known ones stay as they are. A joiner starts at the minimum, never lower; `clock` is
        what it had before it was lost for a moment, if it is still the same process."""
        if worker not in self.clocks:
            self.clocks[worker] = max(clock, self.minimum)
        return self._released(worker)

    def leave(self, worker: int) -> list[Order]:
        """Left or died: nobody waits for it any more. What it pushed and was not yet taken is forgotten."""
        self._waiting.pop(worker, None)
        self._floor = self.minimum
        self.clocks.pop(worker, None)
        return self._released(worker)

    def push(self, worker: int, seq: int, base: int, clock: int = 0, heads: int = 1) -> list[Order]:
        """A gradient computed on version `base` is in the worker's slot, or the sum of those of so many `heads`; with
        it the worker has finished `clock` iterations (0: one more than before). No heads: a step that was skipped. The
        answer may come with a later event."""
        if worker not in self.clocks:
            self.join(worker)
        if self._taken(worker, seq):
            return self._again(worker, seq)
        self._advance(worker, clock or self.clocks[worker] + 1)
        one = Contribution(worker, seq, 1.0, max(0, self.version - base), self.clocks[worker], heads)
        return self._new(one) if heads else self._nothing(one)

    def ask(self, worker: int, clock: int = 0) -> list[Order]:
        """Wants to read the parameters and go on, having finished `clock` iterations."""
        if worker not in self.clocks:
            self.join(worker)
        self._advance(worker, clock)
        return self._wait_or_go(Answer(worker))

    # What can be asked.

    @property
    def minimum(self) -> int:
        """The clock of the slowest member."""
        return min(self.clocks.values(), default=self._floor)

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(sorted(self.clocks))

    def waits(self) -> dict[int, tuple[int, ...]]:
        """Who waits, and for whom."""
        return {worker: self._missing(worker) for worker in self._blocked()}

    # What strategies differ in.

    def _new(self, one: Contribution) -> list[Order]:
        """A push that was not taken before."""
        raise NotImplementedError

    def _nothing(self, one: Contribution) -> list[Order]:
        """A step that was skipped: no update comes of it."""
        return self._drop(one)

    def _may_go(self, worker: int) -> bool:
        """Whether a worker that waits for nothing but the clock may go on."""
        return True

    def _missing(self, worker: int) -> tuple[int, ...]:
        """Whom a waiting worker waits for."""
        return ()

    def _blocked(self) -> list[int]:
        return sorted(self._waiting)

    def _released(self, by: int) -> list[Order]:
        """What somebody's coming or going sets free."""
        return self._let_go(by)

    def _taken(self, worker: int, seq: int) -> bool:
        return seq <= self.seqs.get(worker, 0)

    def _again(self, worker: int, seq: int) -> list[Order]:
        """A push that was taken before, sent again because the answer was lost."""
        return self._wait_or_go(Answer(worker, seq))

    # Their tools.

    def _apply(
        self, contributions: Sequence[Contribution], divisor: float = 1.0, scale: float = 1.0, held: int = 0
    ) -> Apply:
        for one in contributions:
            self.seqs[one.worker] = one.seq
        self.version += 1
        return Apply(tuple(contributions), divisor, scale, held)

    def _drop(self, one: Contribution) -> list[Order]:
        self.seqs[one.worker] = one.seq
        return [Drop(one), *self._wait_or_go(Answer(one.worker, one.seq, one.tau, dropped=True))]

    def _advance(self, worker: int, clock: int) -> None:
        self.clocks[worker] = max(clock, self.clocks[worker])

    def _wait_or_go(self, answer: Answer) -> list[Order]:
        """The answer now, or later; and whoever this sets free."""
        self._waiting[answer.worker] = answer
        return self._let_go(answer.worker)

    def _let_go(self, by: int) -> list[Order]:
        free = [answer for worker, answer in sorted(self._waiting.items()) if self._may_go(worker)]
        for answer in free:
            del self._waiting[answer.worker]
        return [_released_by(answer, by) for answer in free]


def _released_by(answer: Answer, by: int) -> Answer:
    return answer if answer.worker == by else replace(answer, released_by=by)
