"""What a worker saw of itself: time computing, waiting and exchanging, staleness, bytes; and who it waits for.

Strategies add to the counters, `Run` closes the account once a step. A straggler is named by when it arrived at the
exchange: the time of backward says nothing, because an all-reduce makes it equal on all ranks.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

COMPUTE, WAIT, EXCHANGE, DATA = "compute", "wait", "exchange", "data"

MEMORY = 0.9  # how much of the mean lateness stays when a new step is added
NOTABLE = 0.1  # a straggler is late by at least this part of a step


@dataclass(frozen=True)
class Spent:
    """What happened between two moments, mostly in one step. Seconds and bytes."""

    steps: int = 0
    seconds: float = 0.0
    compute: float = 0.0  # what is left when the others are taken away; where exchanges overlap, less than was computed
    wait: float = 0.0
    exchange: float = 0.0
    data: float = 0.0
    sent: int = 0
    received: int = 0
    staleness: Counter[int] = field(default_factory=Counter)


class Arrivals(dict[str, float]):
    """Who reached an exchange when, all on one clock. A peer that comes again has come to the next exchange: at each
    one all wait for the last, so lateness begins anew, and that of a step is the sum over its exchanges."""

    def __init__(self) -> None:
        super().__init__()
        self.late: dict[str, float] = defaultdict(float)  # seconds after the first, in this step

    def __setitem__(self, peer: str, when: float) -> None:
        if peer in self:
            self.close()
        super().__setitem__(peer, when)

    def close(self) -> None:
        """The exchange is over."""
        if len(self) > 1:
            first = min(self.values())
            for peer, when in self.items():
                self.late[peer] += when - first
        self.clear()


class _Around(threading.local):
    """What a thread is in the middle of, the innermost last, each with the time since when."""

    def __init__(self) -> None:
        self.every: list[tuple[str, float]] = []


@dataclass
class Seeing:
    """Counters of one worker. Strategies add to them; `Run` reads them once a step."""

    clock: Callable[[], float] = time.monotonic
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # by COMPUTE, WAIT, EXCHANGE, DATA
    bytes_sent: int = 0
    bytes_received: int = 0
    staleness: Counter[int] = field(default_factory=Counter)
    arrivals: dict[str, float] = field(default_factory=Arrivals)  # peer, oneself too → when it reached the exchange
    lateness: dict[str, float] = field(default_factory=dict)  # peer → seconds that it held a step up, a running mean
    steps: int = 0
    passed: int = 0  # steps that are over and not in the account yet: one who is alone makes it up when it is read
    step_seconds: float = 0.0  # a running mean
    waiting: str = ""  # what is being waited for right now, and for whom; empty when nothing
    waiting_since: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _around: _Around = field(default_factory=_Around, repr=False)
    _step_began: float | None = field(default=None, repr=False)
    _elsewhere: float = field(default=0.0, repr=False)  # WAIT + EXCHANGE + DATA when the step began

    @contextmanager
    def spending(self, what: str) -> Iterator[None]:
        """Adds the time inside to `what`. Inside another one, the time is this one's alone: a wait in the middle of an
        exchange is no exchange."""
        around = self._around.every
        self._account(around)
        around.append((what, self.clock()))
        try:
            yield
        finally:
            self._account(around)
            around.pop()
            if around:
                around[-1] = (around[-1][0], self.clock())

    @contextmanager
    def waiting_for(self, what: str) -> Iterator[None]:
        """Names a wait while it lasts: `all-reduce of step 41: worker-2`. Its time counts as WAIT."""
        self.waiting_since, self.waiting = self.clock(), what
        try:
            with self.spending(WAIT):
                yield
        finally:
            self.waiting = ""

    def wait_is_for(self, who: str) -> None:
        """The wait under way is for these: takes the place of what its name says behind the colon."""
        if self.waiting:
            self.waiting = f"{self.waiting.partition(': ')[0]}: {who}"

    def sent(self, count: int, received: int = 0) -> None:
        with self.lock:
            self.bytes_sent += count
            self.bytes_received += received

    def stale(self, by: int) -> None:
        with self.lock:
            self.staleness[by] += 1

    def held_up(self, by: str, seconds: float) -> None:
        """Where times of arrival are not known, but who came last is: a server's answer was waited for so long."""
        assert isinstance(self.arrivals, Arrivals)
        self.arrivals.late[by] += seconds

    def begin(self) -> None:
        """Training begins now: the first step does not count what was before. Harmless twice."""
        if self._step_began is None:
            self._step_began = self.clock()
            self._elsewhere = self._away()

    def close_step(self, count: int = 1) -> None:
        """A step is over, or so many: what was not spent elsewhere was spent computing."""
        now, away = self.clock(), self._away()
        began = now if self._step_began is None else self._step_began
        elapsed = now - began
        self.seconds[COMPUTE] += max(0.0, elapsed - (away - self._elsewhere))
        self._step_began, self._elsewhere = now, away
        self.steps += count
        self.step_seconds += (elapsed / count - self.step_seconds) / min(self.steps, 10)
        assert isinstance(self.arrivals, Arrivals)
        self.arrivals.close()
        if self.arrivals.late:
            self._judge(self.arrivals.late)

    def straggler(self) -> tuple[str, float] | None:
        """Who comes last to the exchange and by how many seconds, in the mean of late; None when nobody stands out."""
        if not self.lateness:
            return None
        late = sorted(self.lateness, key=lambda peer: self.lateness[peer])
        worst, rest = self.lateness[late[-1]], max((self.lateness[peer] for peer in late[:-1]), default=0.0)
        notable = worst > NOTABLE * self.step_seconds and worst > 2 * rest
        return (late[-1], worst) if notable else None

    def total(self) -> Spent:
        """Everything since the beginning."""
        if self.passed:
            passed, self.passed = self.passed, 0
            self.close_step(passed)
        with self.lock:
            seconds, staleness = self.seconds, Counter(self.staleness)
            return Spent(
                self.steps,
                self.clock(),
                seconds[COMPUTE],
                seconds[WAIT],
                seconds[EXCHANGE],
                seconds[DATA],
                self.bytes_sent,
                self.bytes_received,
                staleness,
            )

    def _account(self, around: list[tuple[str, float]]) -> None:
        """What was spent in the innermost so far."""
        if around:
            what, since = around[-1]
            with self.lock:
                self.seconds[what] += self.clock() - since

    def _away(self) -> float:
        seconds = self.seconds
        return seconds[WAIT] + seconds[EXCHANGE] + seconds[DATA]

    def _judge(self, late: dict[str, float]) -> None:
        for peer in {*late, *self.lateness}:
            seconds = late.get(peer, 0.0)
            self.lateness[peer] = MEMORY * self.lateness.get(peer, seconds) + (1 - MEMORY) * seconds
        late.clear()


def between(before: Spent, after: Spent) -> Spent:
    """What happened between two totals."""
    return Spent(
        after.steps - before.steps,
        after.seconds - before.seconds,
        after.compute - before.compute,
        after.wait - before.wait,
        after.exchange - before.exchange,
        after.data - before.data,
        after.sent - before.sent,
        after.received - before.received,
        after.staleness - before.staleness,
    )
