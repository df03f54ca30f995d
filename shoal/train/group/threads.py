"""A group of threads in one process: the same bargain as the real ones, for tests and simulations.

A collective is a row in a table: each member lays its part there and goes on when all have come. Numbers of rows carry
the number of the dead in front, as in `attendance`.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shoal.train.errors import Disagreement, PeerLost, WaitedTooLong
from shoal.train.group import calls
from shoal.train.group.lanes import pieces_of
from shoal.train.group.staging import copy_of, count, flat, give_back
from shoal.train.seeing import Seeing

if TYPE_CHECKING:
    from torch import Tensor

PATIENCE = 60.0  # seconds


class ThreadGroup:
    """One member. `ThreadGroup.make(n)` gives all of them; each belongs to one thread."""

    def __init__(self, table: _Table, rank: int, seeing: Seeing, patience: float) -> None:
        self.rank = rank
        self.size = table.size
        self.seeing = seeing
        self._table = table
        self._patience = patience
        self._number = 0
        self._known_gone: set[int] = set()

    @classmethod
    def make(cls, count: int, patience: float = PATIENCE) -> list[ThreadGroup]:
        table = _Table(count)
        return [cls(table, rank, Seeing(), patience) for rank in range(count)]

    def members(self) -> tuple[int, ...]:
        with self._table.changed:
            return self._table.present()

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> None:
        staged, copied = flat(tensor)
        (how, mine), sign = pieces_of(staged), calls.sign(calls.REDUCTIONS[op], staged.dtype, count(staged))
        parts = self._meet(sign, copy_of(mine))
        every = [parts[one] for one in sorted(parts)]
        how.copy(mine, every[0])
        for one in every[1:]:
            how.combine("sum" if op == "mean" else op, mine, one, mine)
        if op == "mean" and len(every) > 1:
            how.divide(mine, len(every))
        self.seeing.sent(2 * (len(every) - 1) * staged.nbytes // len(every))
        if copied:
            give_back(staged, tensor)

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        if source != self.rank and source not in self.members():
            raise PeerLost(f"worker-{source} is no longer here, so it cannot be the source", [f"worker-{source}"])
        staged, copied = flat(tensor)
        how, piece = pieces_of(staged)
        mine = copy_of(piece) if source == self.rank else None
        parts = self._meet(calls.sign(calls.BROADCAST, staged.dtype, count(staged), source), mine)
        how.copy(piece, parts[source])
        if copied:
            give_back(staged, tensor)

    def gather(self, value: Any) -> list[Any]:
        parts = self._meet(calls.sign(calls.GATHER), json.dumps(value))
        return [json.loads(parts[one]) for one in sorted(parts)]

    def send(self, to: int, tensor: Tensor) -> None:
        with self._table.changed:
            if to in self._table.left | self._table.gone:
                raise _away(to)
            self._table.mail.setdefault((self.rank, to), deque()).append(copy_of(flat(tensor)[0]))
            self._table.changed.notify_all()
        self.seeing.sent(tensor.nbytes)

    def receive(self, source: int, out: Tensor) -> None:
        box = self._table.mail.setdefault((source, self.rank), deque())
        with self._table.changed:
            self._wait(lambda: bool(box) or source in self._table.left | self._table.gone, "message", lambda: [source])
            if not box:
                raise _away(source)
            found = box.popleft()
        staged, copied = flat(out)
        if count(found) != count(staged) or found.dtype != staged.dtype:
            raise Disagreement(
                f"worker-{self.rank} expects {count(staged)} {staged.dtype} from worker-{source}, which sent "
                f"{count(found)} {found.dtype}; both must name the same tensor"
            )
        how, piece = pieces_of(staged)
        how.copy(piece, how.over(found))
        if copied:
            give_back(staged, out)

    def leave(self) -> None:
        with self._table.changed:
            self._table.left.add(self.rank)
            self._table.changed.notify_all()

    def die(self) -> None:
        """As a process that is killed: for tests."""
        with self._table.changed:
            self._table.gone.add(self.rank)
            self._table.changed.notify_all()

    def _meet(self, sign: int, part: Any) -> dict[int, Any]:
        """Everybody's part, by rank."""
        self._number += 1
        number, table = self._number, self._table
        with table.changed:
            row = table.rows.setdefault(number, {})
            row[self.rank] = (sign, part)
            table.forget(self.rank, number - 2)
            table.changed.notify_all()
            self._wait(
                lambda: table.complete(number) or bool(self._news()), calls.words(sign), lambda: table.missing(number)
            )
            news = self._news()
            if news and not table.complete(number):
                raise self._lose(news)
            for other, (theirs, _) in row.items():
                if theirs != sign:
                    raise Disagreement(
                        f"worker-{self.rank} is in {calls.words(sign)}, worker-{other} in {calls.words(theirs)}: "
                        "the calls of all workers must come in the same order"
                    )
            return {one: part for one, (_, part) in row.items()}

    def _news(self) -> set[int]:
        return self._table.gone - self._known_gone

    def _lose(self, news: set[int]) -> PeerLost:
        self._known_gone |= news
        self._number = len(self._known_gone) << 32
        names = [f"worker-{one}" for one in sorted(news)]
        return PeerLost(f"{', '.join(names)} died in the middle of the work", names)

    def _wait(self, done: Callable[[], bool], what: str, missing: Callable[[], list[int]]) -> None:
        """The table's lock is held. Names at any time whom it still waits for."""
        if done():
            return
        end = self.seeing.clock() + self._patience
        with self.seeing.waiting_for(what):
            while not done():
                names, left = [f"worker-{one}" for one in missing()], end - self.seeing.clock()
                if left <= 0:
                    raise WaitedTooLong(f"worker-{self.rank} waited {self._patience:g} s in {what} for {names}", names)
                self.seeing.waiting = f"{what}: {', '.join(names)}"
                self._table.changed.wait(left)


class _Table:
    """What the members share. Every field under `changed`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.rows: dict[int, dict[int, tuple[int, Any]]] = {}
        self.mail: dict[tuple[int, int], deque[Tensor]] = {}
        self.left: set[int] = set()
        self.gone: set[int] = set()

    def present(self) -> tuple[int, ...]:
        return tuple(one for one in range(self.size) if one not in self.left and one not in self.gone)

    def missing(self, number: int) -> list[int]:
        """Who is still to come to a row. One that died is not, after its death was told: the number says so."""
        row, told = self.rows[number], len(self.gone) == number >> 32
        away = self.left | (self.gone if told else set())
        return [one for one in range(self.size) if one not in row and one not in away]

    def complete(self, number: int) -> bool:
        return not self.missing(number)

    def forget(self, rank: int, number: int) -> None:
        """A member that is two rows on has read that row, and so it needs its part no longer."""
        row = self.rows.get(number, {})
        row.pop(rank, None)
        if not row:
            self.rows.pop(number, None)


def _away(other: int) -> PeerLost:
    return PeerLost(f"worker-{other} has left the group, so nothing comes from it or goes to it", [f"worker-{other}"])
