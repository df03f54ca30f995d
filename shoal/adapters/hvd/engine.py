"""One set of workers at work: a thread that tells the others what was asked here, learns what they ask, and does what
all have asked for.

A round is one small gather of news. A worker comes to it when it has news, or when something it asked for is not done
yet; so who waits for a slow one sleeps in the round, and nobody is woken for nothing. Only where workers ask in
different orders can two of them come with no news; then they look again after a pause that grows.
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
    """The collective operations of one set. `ask` from any thread; the group is the engine's own."""

    def __init__(self, group: Group, ranks: Sequence[int], rank: int) -> None:
        self.group = group
        self.ranks = list(ranks)
        self._ids = group.members()
        self._exchange = Exchange(group, self.ranks.index(rank), self._ids, self.ranks)
        self._table = Table(ranks)
        self._changed = threading.Condition()
        self._news: list[Ask] = []
        self._held: dict[str, tuple[Future[Any], Arrays | None]] = {}  # asked for here and not done
        self._over: BaseException | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="shoal-hvd", daemon=True)
        self._thread.start()

    def ask(self, ask: Ask, arrays: Arrays | None = None) -> Future[Any]:
        """Returns at once. The arrays must be left alone until the result is there: all-reduces and broadcasts are done
        in them. HorovodInternalError when the set is over, or the name is in use."""
        future: Future[Any] = Future()
        with self._changed:
            if self._over is not None or self._closing:
                raise _internal(self._over or ShoalError(_DOWN))
            if ask.name in self._held:
                raise HorovodInternalError(
                    f"{ask.kind} {ask.name!r} is asked for again before it is done; "
                    "give each operation a name of its own, or synchronize() first"
                )
            self._held[ask.name] = future, arrays
            self._news.append(ask)
            self._changed.notify()
        return future

    def wait(self, future: Future[Any], what: str) -> Any:
        """The result; tells now and then who is missing."""
        while True:
            try:
                return future.result(STALLED)
            except Late:
                missing = ", ".join(self._table.missing(what)) or "others in the middle of it"
                _log.warning("%s has waited for more than %.0f s: for %s", what, STALLED, missing)

    def close(self) -> None:
        """What is not done fails; the others go on without this worker, or learn that they cannot. Harmless twice."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(GRACE)

    @property
    def lost(self) -> BaseException | None:
        """Why the set is over, if it is."""
        return self._over

    def _work(self) -> None:
        pause = 0.0
        try:
            while (news := self._await_work(pause)) is not None:
                told = self._tell(news)
                pause = 0.0 if any(told) else min(LONGEST, 2 * pause or PAUSE)
                self._do(self._table.add(told))
        except PeerLost as lost:
            self._end(lost)  # who is left may need the group once more, to begin anew
        except BaseException as failed:
            self._end(failed)
            self.group.leave()
        else:
            self._end(ShoalError(_DOWN))
            self.group.leave()

    def _await_work(self, pause: float) -> list[Ask] | None:
        """What to tell in the next round, maybe nothing; None when it is over."""
        with self._changed:
            if pause:
                self._changed.wait_for(lambda: self._news or self._closing, pause)
            self._changed.wait_for(lambda: self._news or self._held or self._closing)
            if self._closing:
                return None
            news, self._news = self._news, []
            return news

    def _tell(self, news: Sequence[Ask]) -> list[list[Ask]]:
        """A round: everybody's news, by place. ShoalError when somebody has left."""
        told = self.group.gather([ask.plain() for ask in news])
        if len(told) < len(self.ranks):
            here = self.group.members()
            gone = [f"worker-{rank}" for rank, one in zip(self.ranks, self._ids, strict=True) if one not in here]
            raise ShoalError(f"{', '.join(gone) or 'a worker'} has shut Horovod down or ended; its log says why")
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
        for future, _ in held.values():
            future.set_exception(_internal(why))


def _internal(why: BaseException) -> HorovodInternalError:
    failed = HorovodInternalError(str(why))
    failed.__cause__ = why
    return failed

