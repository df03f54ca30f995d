"""One set of workers at work: tells the others what was asked here, learns what they ask, and does what all have asked
for.

A round is one small gather of news. A worker comes to it when it has news, or when something it asked for is not done
yet; so who waits for a slow one sleeps in the round, and nobody is woken for nothing. Only where workers ask in
different orders can two of them come with no news; then they look again after a pause that grows.

Rounds are driven by a thread of the engine's own; a caller that would only wait drives them itself, which saves two
changes of thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from typing import TYPE_CHECKING, Any

from shoal.adapters.hvd.ask import ALLREDUCE, Ask
from shoal.adapters.hvd.errors import HorovodInternalError
from shoal.adapters.hvd.exchange import Arrays, Exchange
from shoal.adapters.hvd.table import Ready, Table
from shoal.errors import ShoalError
from shoal.train.errors import PeerLost

if TYPE_CHECKING:
    from shoal.train.group.api import Group

PAUSE, LONGEST = 0.0001, 0.002  # seconds between two rounds without news: the first, and what it grows to
STALLED = 60.0  # seconds after which a wait is told of
GRACE = 2.0  # seconds for the thread to come to an end

_DOWN = "Horovod has been shut down; call hvd.init() again"
_log = logging.getLogger("shoal.hvd")


class Engine:
    """The collective operations of one set, asked for from any thread. The group is the engine's own; it counts the
    workers of these ranks as `ids`."""

    def __init__(self, group: Group, ids: Sequence[int], ranks: Sequence[int], rank: int) -> None:
        self.group = group
        self.ranks = list(ranks)
        self._ids = list(ids)
        self._exchange = Exchange(group, self.ranks.index(rank), self._ids, self.ranks)
        self._table = Table(ranks)
        self._changed = threading.Condition()
        self._driving = threading.Lock()  # held by who makes rounds; everything about the group is under it
        self._pause = 0.0
        self._news: list[Ask] = []
        self._held: dict[str, tuple[Future[Any], Arrays | None]] = {}  # asked for here and not done
        self._over: BaseException | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="shoal-hvd", daemon=True)
        self._thread.start()

    def ask(self, ask: Ask, arrays: Arrays | None = None) -> Future[Any]:
        """Returns at once. The arrays must be left alone until the result is there: all-reduces and broadcasts are done
        in them. HorovodInternalError when the set is over, or the name is in use."""
        with self._changed:
            future = self._take(ask, arrays)
            self._changed.notify()
        return future

    def do(self, ask: Ask, arrays: Arrays | None = None) -> Any:
        """The same, and waits for the result."""
        if not self._driving.acquire(blocking=False):
            return self.wait(self.ask(ask, arrays), ask.name)
        try:
            with self._changed:
                future = self._take(ask, arrays)
            while not future.done():
                self._round()
        finally:
            self._driving.release()
            with self._changed:
                if self._news or self._held:
                    self._changed.notify()
        return future.result()

    def wait(self, future: Future[Any], name: str) -> Any:
        """The result of that name; tells now and then who is missing."""
        while True:
            try:
                return future.result(STALLED)
            except Late:
                if future.done():
                    raise
                self._warn([name])

    def close(self) -> None:
        """What is not done fails; the others go on without this worker, or learn that they cannot. Harmless twice."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(GRACE)
        if isinstance(self._over, PeerLost):
            self.group.leave()

    @property
    def lost(self) -> BaseException | None:
        """Why the set is over, if it is."""
        return self._over

    def _take(self, ask: Ask, arrays: Arrays | None) -> Future[Any]:
        """Within `_changed`."""
        if self._over is not None or self._closing:
            raise _internal(self._over or ShoalError(_DOWN))
        if ask.name in self._held:
            raise HorovodInternalError(
                f"{ask.kind} {ask.name!r} is asked for again before it is done; "
                "give each operation a name of its own, or synchronize() first"
            )
        future: Future[Any] = Future()
        self._held[ask.name] = future, arrays
        self._news.append(ask)
        return future

    def _work(self) -> None:
        while self._await_work():
            with self._driving:
                if self._news or self._held:
                    self._round()
        if self._over is None:
            self._end(ShoalError(_DOWN))
            with self._driving:
                self.group.leave()

    def _await_work(self) -> bool:
        """False when it is over. Somebody who drives may have done the work by then."""
        with self._changed:
            while not (self._news or self._held or self._closing or self._over):
                self._changed.wait()
            while self._driving.locked() and not (self._closing or self._over):
                if not self._changed.wait(STALLED) and self._held:
                    self._warn(list(self._held))
            return not (self._closing or self._over)

    def _round(self) -> None:
        """Within `_driving`. Never raises but what ends the process: what goes wrong is everybody's who waits."""
        try:
            told = self._tell(self._fresh())
            self._pause = 0.0 if any(told) else min(LONGEST, 2 * self._pause or PAUSE)
            self._do(self._table.add(told))
        except PeerLost as lost:
            self._end(lost)  # who is left may need the group once more, to begin anew
        except BaseException as failed:
            self._end(failed)
            self.group.leave()
            if not isinstance(failed, Exception):
                raise

    def _fresh(self) -> list[Ask]:
        """What to tell in this round, maybe nothing."""
        with self._changed:
            if self._pause:
                self._changed.wait_for(lambda: self._news or self._closing, self._pause)
            news, self._news = self._news, []
            return news

    def _tell(self, news: Sequence[Ask]) -> list[list[Ask]]:
        """Everybody's news, by place. PeerLost when somebody has left: no operation can be complete without it."""
        told = self.group.gather([ask.plain() for ask in news])
        if len(told) < len(self.ranks):
            here = self.group.members()
            gone = [f"worker-{rank}" for rank, one in zip(self.ranks, self._ids, strict=True) if one not in here]
            raise PeerLost(f"{', '.join(gone) or 'a worker'} has shut Horovod down or ended; its log says why", gone)
        return [[Ask.of(plain) for plain in every] for every in told]

    def _do(self, ready: Sequence[Ready]) -> None:
        sums = [(one, self._arrays(one)) for one in ready if one.ask.kind == ALLREDUCE and one.wrong is None]
        for one, result in self._exchange.reduce_all(sums):
            self._give(one, result)
        for one in ready:
            if one.wrong is not None:
                self._give(one, None, HorovodInternalError(one.wrong))
            elif one.ask.kind != ALLREDUCE:
                self._give(one, self._exchange.do(one, self._arrays(one)))

    def _arrays(self, ready: Ready) -> Arrays | None:
        with self._changed:
            held = self._held.get(ready.name)
        return held[1] if held else None

    def _give(self, ready: Ready, result: Any, wrong: Exception | None = None) -> None:
        with self._changed:
            held = self._held.pop(ready.name, None)
        if held is None:
            return  # joined here: the others' result
        if wrong is not None:
            held[0].set_exception(wrong)
        else:
            held[0].set_result(result)

    def _end(self, why: BaseException) -> None:
        with self._changed:
            self._over = why
            held, self._held, self._news = self._held, {}, []
            self._changed.notify_all()
        for future, _ in held.values():
            future.set_exception(_internal(why))

    def _warn(self, names: Sequence[str]) -> None:
        for name in names[:8]:
            missing = ", ".join(self._table.missing(name)) or "others in the middle of it"
            _log.warning("%s has waited for more than %.0f s: for %s", name, STALLED, missing)


def _internal(why: BaseException) -> HorovodInternalError:
    failed = HorovodInternalError(str(why))
    failed.__cause__ = why
    return failed
