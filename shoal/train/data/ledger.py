"""Who holds which shard of an epoch: a pure record of batches handed out, done, and given back.

Every batch is in exactly one place: not handed out yet, held by a worker, given back by one that was lost, or done. An
epoch is over when all are done, so a shard that was lost with its worker is always read by another. When nobody is lost
each batch is handed out once. Otherwise those that came back may have been read in part before, and the ledger counts
them: it knows which of the two it was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Range = tuple[int, int]  # batches from … up to, not including

LARGEST = 16  # batches in a shard
PORTION = (
    4  # of what is left, a worker gets one part in `PORTION × workers`: small shards at the end, so all end together
)


@dataclass(frozen=True)
class Report:
    """What an epoch came to."""

    batches: int
    again: int  # batches that were handed out a second time
    lost: tuple[str, ...]  # workers whose shards came back

    @property
    def exactly_once(self) -> bool:
        return self.again == 0

    def __str__(self) -> str:
        if self.exactly_once:
            return f"every one of {self.batches} batches was read exactly once"
        return (
            f"every one of {self.batches} batches was read at least once: {self.again} of them were handed out again "
            f"after {', '.join(self.lost)} left"
        )


@dataclass
class Ledger:
    """One pass over one loader."""

    total: int | None = None  # batches; None until somebody finds the end
    largest: int = LARGEST
    next: int = 0  # the first batch that was never handed out
    held: dict[str, list[Range]] = field(default_factory=dict)
    back: list[Range] = field(default_factory=list)  # given back, in order
    done: list[Range] = field(default_factory=list)  # in order, apart from each other
    again: int = 0
    lost: list[str] = field(default_factory=list)
    told: bool = False  # somebody knows that it is over

    @property
    def over(self) -> bool:
        return self.total is not None and count(self.done) >= self.total

    def take(self, worker: str, workers: int) -> Range | None:
        """A shard for the worker; None when everything is handed out."""
        if self.back:
            begin, end = self.back.pop(0)
            size = min(end - begin, self.largest)
            if begin + size < end:
                self.back.insert(0, (begin + size, end))
        else:
            begin, size = self.next, self._size(workers)
            self.next += size
        if not size:
            return None
        self.held.setdefault(worker, []).append((begin, begin + size))
        return begin, begin + size

    def finish(self, worker: str, ranges: Iterable[Range]) -> None:
        """The worker has trained on these, whoever they belong to by now."""
        for one in ranges:
            for holder in list(self.held):
                self._keep(holder, minus(self.held[holder], one))
            self.back = minus(self.back, one)
            self.done = plus(self.done, one)

    def reconcile(self, worker: str, holding: Iterable[Range]) -> None:
        """What the worker says it holds. What it does not know of never reached it, or it has forgotten."""
        unknown = self.held.get(worker, [])
        for one in holding:
            unknown = minus(unknown, one)
        if unknown:
            self._return(worker, unknown)

    def leave(self, worker: str) -> None:
        """The worker is gone: what it held goes to others. Harmless twice."""
        if self.held.get(worker):
            self._return(worker, self.held[worker])

    def end(self, total: int) -> None:
        """Somebody found that there are only so many batches."""
        self.total = total if self.total is None else min(total, self.total)
        self.next = min(self.next, self.total)
        beyond = (self.total, 1 << 62)
        self.back = minus(self.back, beyond)
        for holder in list(self.held):
            self._keep(holder, minus(self.held[holder], beyond))

    def report(self) -> Report:
        return Report(count(self.done), self.again, tuple(self.lost))

    def to_json(self) -> dict[str, Any]:
        return {
            "total": self.total, "largest": self.largest, "next": self.next, "held": self.held, "back": self.back,
            "done": self.done, "again": self.again, "lost": self.lost, "told": self.told,
        }  # fmt: skip

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Ledger:
        held = {worker: _pairs(ranges) for worker, ranges in raw["held"].items()}
        return cls(**{**raw, "held": held, "back": _pairs(raw["back"]), "done": _pairs(raw["done"])})

    @classmethod
    def resumed(cls, total: int | None, largest: int, done: Iterable[Iterable[int]]) -> Ledger:
        """An epoch of which some batches were done before a restart."""
        ledger = cls(total, largest)
        ledger.done = _pairs(done)
        ledger.next = ledger.done[-1][1] if ledger.done else 0
        ledger.back = [(0, ledger.next)] if ledger.done else []
        for one in ledger.done:
            ledger.back = minus(ledger.back, one)
        return ledger

    def _size(self, workers: int) -> int:
        if self.total is None:
            return self.largest
        left = self.total - self.next
        return min(left, self.largest, max(1, left // (PORTION * max(1, workers))))

    def _return(self, worker: str, ranges: list[Range]) -> None:
        for one in ranges:
            self._keep(worker, minus(self.held[worker], one))
            self.back = plus(self.back, one)
            self.again += one[1] - one[0]
        if worker not in self.lost:
            self.lost.append(worker)

    def _keep(self, worker: str, ranges: list[Range]) -> None:
        if ranges:
            self.held[worker] = ranges
        else:
            self.held.pop(worker, None)


def count(ranges: Iterable[Range]) -> int:
    return sum(end - begin for begin, end in ranges)


def plus(ranges: Iterable[Range], one: Range) -> list[Range]:
    """With this range, in order, joined where they touch."""
    result: list[Range] = []
    for begin, end in sorted([*ranges, one]):
        if result and begin <= result[-1][1]:
            result[-1] = result[-1][0], max(end, result[-1][1])
        elif begin < end:
            result.append((begin, end))
    return result


def minus(ranges: Iterable[Range], one: Range) -> list[Range]:
    """Without this range."""
    result: list[Range] = []
    for begin, end in ranges:
        result += [part for part in ((begin, min(end, one[0])), (max(begin, one[1]), end)) if part[0] < part[1]]
    return result


def _pairs(raw: Iterable[Iterable[int]]) -> list[Range]:
    return [(begin, end) for begin, end in raw]
