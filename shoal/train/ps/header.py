"""The counters of a shard: who was counted how far, and what is being done right now.

They are int64 words (a few are read as float64) in the shard's segment. One word is written at a time, and the order of
the writes is the protocol: an intent is complete before BUSY says so, a chunk's journal before OPEN names it, a chunk
before NEXT passes it. A process may die between any two of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shoal.train.ps.orders import Apply, Contribution, Drop, Hold, Resume

MAX_WORKERS = 1024
MAGIC = 0x53484F414C505331  # "SHOALPS1"; written last when a shard is made

# Words of the header.
(_MAGIC, META, RECIPE, VERSION, FILLED, RECIPE_AT, HELD, HELD_SCALE,
 BUSY, NEXT, OPEN, COUNT, DIVISOR, SCALE, USED, VERSION_AFTER, HELD_AFTER, HELD_SCALE_AFTER) = range(18)  # fmt: skip
IDLE, APPLYING, HOLDING = 0, 1, 2  # values of BUSY

_WORDS = 64
_ROW = 3  # of a worker: last seq taken, clock, member
_SEQ, _CLOCK, _MEMBER = range(_ROW)
_ENTRY = 5  # of an intent: worker, seq, clock, tau, weight
_TABLE = _WORDS
_INTENT = _TABLE + MAX_WORKERS * _ROW
WORDS = _INTENT + MAX_WORKERS * _ENTRY


class Header:
    """Reads and writes the words. `words` and `numbers` are the same memory as int64 and as float64."""

    def __init__(self, words: np.ndarray[Any, np.dtype[Any]], numbers: np.ndarray[Any, np.dtype[Any]]) -> None:
        self.words, self.numbers = words, numbers
        self._table = words[_TABLE:_INTENT].reshape(MAX_WORKERS, _ROW)
        self._intent = words[_INTENT:WORDS].reshape(MAX_WORKERS, _ENTRY)
        self._weights = numbers[_INTENT:WORDS].reshape(MAX_WORKERS, _ENTRY)[:, -1]

    def __getitem__(self, word: int) -> int:
        return int(self.words[word])

    def __setitem__(self, word: int, value: int) -> None:
        self.words[word] = value

    def seal(self) -> None:
        """The shard is made: from now on it may be opened."""
        self.words[_MAGIC] = MAGIC

    @property
    def sealed(self) -> bool:
        return self[_MAGIC] == MAGIC

    # Workers.

    def remember(self, clocks: Mapping[int, int]) -> None:
        """Exactly these are members."""
        self._table[:, _MEMBER] = 0
        for worker, clock in clocks.items():
            row = self._row(worker)
            row[_CLOCK], row[_MEMBER] = clock, 1

    def count(self, one: Contribution) -> None:
        """Taken; a second time changes nothing. The clock first: a push is taken when its seq says so."""
        row = self._row(one.worker)
        row[_CLOCK] = max(int(row[_CLOCK]), one.clock)
        row[_MEMBER] = 1
        row[_SEQ] = max(int(row[_SEQ]), one.seq)

    def workers(self) -> Iterator[tuple[int, int, int, bool]]:
        """(worker, last seq, clock, whether a member) of all that ever were."""
        for worker in np.flatnonzero(self._table.any(axis=1)):
            seq, clock, member = (int(value) for value in self._table[worker])
            yield int(worker), seq, clock, bool(member)

    def restore(self, rows: Sequence[Sequence[int]]) -> None:
        """What `workers` gave elsewhere."""
        self._table[:] = 0
        for worker, seq, clock, member in rows:
            self._row(worker)[:] = (seq, clock, int(member))

    def resume(self) -> Resume:
        rows = list(self.workers())
        return Resume(
            version=self[VERSION],
            seqs={worker: seq for worker, seq, _, _ in rows if seq},
            clocks={worker: clock for worker, _, clock, member in rows if member},
            held=self[HELD],
            held_scale=float(self.numbers[HELD_SCALE]),
        )

    def _row(self, worker: int) -> np.ndarray[Any, np.dtype[Any]]:
        if not 0 <= worker < MAX_WORKERS:
            raise ValueError(f"worker {worker} does not fit: a server counts workers 0 to {MAX_WORKERS - 1}")
        return self._table[worker]  # type: ignore[no-any-return]

    # What is being done.

    def intend(self, order: Apply | Hold) -> None:
        """Everything needed to finish the order, or to know that it never began."""
        taken = order.contributions if isinstance(order, Apply) else (order.contribution,)
        for at, one in enumerate(taken):
            self._row(one.worker)
            self._intent[at, :-1] = (one.worker, one.seq, one.clock, one.tau)
            self._weights[at] = one.weight
        self[COUNT], self[NEXT], self[OPEN] = len(taken), 0, -1
        if isinstance(order, Apply):
            self.numbers[DIVISOR], self.numbers[SCALE] = order.divisor, order.scale
            self[USED], self[VERSION_AFTER] = order.held, self[VERSION] + 1
            self[HELD_AFTER], self.numbers[HELD_SCALE_AFTER] = 0, 0.0
        else:
            self[USED], self[VERSION_AFTER] = self[HELD], self[VERSION]
            self[HELD_AFTER] = self[HELD] + 1
            self.numbers[HELD_SCALE_AFTER] = self.numbers[HELD_SCALE] + order.contribution.weight
        self[BUSY] = APPLYING if isinstance(order, Apply) else HOLDING

    def intended(self) -> Apply | Hold | None:
        """The order that was not finished, if any."""
        if self[BUSY] == IDLE:
            return None
        entries = [
            Contribution(int(worker), int(seq), float(self._weights[at]), int(tau), int(clock))
            for at, (worker, seq, clock, tau) in enumerate(self._intent[: self[COUNT], :-1])
        ]
        if self[BUSY] == HOLDING:
            return Hold(entries[0])
        return Apply(tuple(entries), float(self.numbers[DIVISOR]), float(self.numbers[SCALE]), self[USED])

    def finish(self, order: Apply | Hold) -> None:
        """Every chunk is written. Each line may run twice."""
        for one in order.contributions if isinstance(order, Apply) else (order.contribution,):
            self.count(one)
        self[HELD] = self[HELD_AFTER]
        self.numbers[HELD_SCALE] = self.numbers[HELD_SCALE_AFTER]
        self[VERSION] = self[VERSION_AFTER]
        self[BUSY] = IDLE

    def cancel(self) -> None:
        """The order never was."""
        self[BUSY] = IDLE

    def drop(self, order: Drop) -> None:
        self.count(order.contribution)
