"""A rule and its workers without time: a schedule says who finishes computing next, dies, joins, or sends twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import strategies as st

from shoal.strategy import parse
from shoal.train.ps import rules
from shoal.train.ps.orders import Answer, Apply, Contribution, Drop, Hold, Order

FINISH, AGAIN, DIE, JOIN = "finish", "again", "die", "join"

FINISHES = st.lists(st.tuples(st.just(FINISH), st.integers(0, 63)), max_size=120)
ANYTHING = st.lists(
    st.tuples(st.sampled_from([FINISH] * 8 + [AGAIN] * 3 + [DIE, JOIN]), st.integers(0, 63)), max_size=150
)


@dataclass
class Worker:
    seq: int
    clock: int
    base: int = 0
    waiting: bool = False
    seen: dict[int, frozenset[int]] = field(default_factory=dict)  # what was in the parameters when it read them


@dataclass
class Drive:
    """Plays a schedule. `applied`, `held` and `dropped` are what the orders said, in order."""

    rule: rules.Rule
    workers: dict[int, Worker] = field(default_factory=dict)
    version: int = 0
    received: int = 0
    consumed: int = 0  # sum of the staleness of all pushes that came
    updates: list[Apply] = field(default_factory=list)
    taken: Counter[tuple[int, int]] = field(default_factory=Counter)  # (worker, seq) → how often it counts
    held: list[Contribution] = field(default_factory=list)
    dropped: list[Contribution] = field(default_factory=list)
    applied_clocks: dict[int, set[int]] = field(default_factory=dict)  # worker → clocks whose update is in

    @classmethod
    def of(cls, text: str, workers: int) -> Drive:
        strategy = parse(text)
        drive = cls(rules.make(strategy.name, strategy.options, workers))
        for worker in range(workers):
            drive.join(worker)
        return drive

    @property
    def computing(self) -> list[int]:
        return sorted(worker for worker, one in self.workers.items() if not one.waiting)

    @property
    def blocked(self) -> list[int]:
        return sorted(worker for worker, one in self.workers.items() if one.waiting)

    def play(self, what: str, number: int) -> None:
        if what == JOIN:
            self.join(number % 8)
        elif what == DIE and len(self.workers) > 1:
            self.die(sorted(self.workers)[number % len(self.workers)])
        elif what == AGAIN and self.workers:
            self.again(sorted(self.workers)[number % len(self.workers)])
        elif what == FINISH and self.computing:
            self.finish(self.computing[number % len(self.computing)])

    def finish(self, worker: int) -> list[Order]:
        one = self.workers[worker]
        one.seq, one.clock, one.waiting = one.seq + 1, one.clock + 1, True
        self.received += 1
        self.consumed += self.version - one.base
        return self._obey(self.rule.push(worker, one.seq, one.base, one.clock))

    def again(self, worker: int) -> list[Order]:
        """The last push of the worker is delivered once more, whatever became of it."""
        one = self.workers[worker]
        return self._obey(self.rule.push(worker, one.seq, one.base, one.clock)) if one.seq else []

    def die(self, worker: int) -> list[Order]:
        del self.workers[worker]
        return self._obey(self.rule.leave(worker))

    def join(self, worker: int) -> list[Order]:
        if worker in self.workers:
            return []
        orders = self.rule.join(worker)
        self.workers[worker] = Worker(self.rule.seqs.get(worker, 0), self.rule.clocks[worker], self.version)
        return self._obey(orders)

    def inflight(self) -> int:
        """The staleness that those computing have gathered so far."""
        return sum(self.version - self.workers[worker].base for worker in self.computing)

    def _obey(self, orders: list[Order]) -> list[Order]:
        for order in orders:
            if isinstance(order, Apply):
                assert order.held == len(self.held)
                for one in (*self.held, *order.contributions):
                    self.applied_clocks.setdefault(one.worker, set()).add(one.clock)
                self.held.clear()
                self._take(order.contributions)
                self.updates.append(order)
                self.version += 1
                assert self.rule.version >= self.version
            elif isinstance(order, Hold):
                self._take((order.contribution,))
                self.held.append(order.contribution)
            elif isinstance(order, Drop):
                self._take((order.contribution,))
                self.dropped.append(order.contribution)
            elif isinstance(order, Answer) and order.worker in self.workers and self.workers[order.worker].waiting:
                self.workers[order.worker].waiting = False
                self.workers[order.worker].base = self.version
                self.workers[order.worker].seen = {who: frozenset(them) for who, them in self.applied_clocks.items()}
        assert self.rule.version == self.version
        return orders

    def _take(self, contributions: tuple[Contribution, ...]) -> None:
        self.taken.update((one.worker, one.seq) for one in contributions)
