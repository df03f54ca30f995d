"""Exchanges beside the training: one thread for each neighbour that is called, so that one who does not answer holds
up nobody but the thread that asked it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence

from shoal.train.errors import PeerLost

STUCK = 2.0  # seconds after which an exchange no longer keeps others from being begun


class Couriers:
    """Carries exchanges out. `carry(rank)` is one exchange with one neighbour; it may raise PeerLost, which is what it
    is, or something else, which the training is told at its next step."""

    def __init__(self, carry: Callable[[int], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._carry, self._clock = carry, clock
        self._orders: dict[int, queue.SimpleQueue[bool]] = {}
        self._threads: list[threading.Thread] = []
        self._under_way: dict[int, float] = {}  # rank → since when
        self._change = threading.Condition()
        self._error: BaseException | None = None

    def begin(self, ranks: Sequence[int]) -> list[int]:
        """Begins an exchange with each of them that has none under way. Returns with whom."""
        begun = []
        with self._change:
            for rank in ranks:
                if rank not in self._under_way:
                    self._under_way[rank] = self._clock()
                    begun.append(rank)
        for rank in begun:
            self._queue(rank).put(True)
        return begun

    def busy(self, rank: int) -> bool:
        with self._change:
            return rank in self._under_way

    def any(self) -> bool:
        with self._change:
            return bool(self._under_way)

    def names(self) -> str:
        with self._change:
            return ", ".join(f"worker-{rank}" for rank in sorted(self._under_way))

    def wait(self, seconds: float) -> bool:
        """Whether all exchanges are done, after waiting for no longer than that. Those that are stuck do not count.
        Raises what one of them met."""
        with self._change:
            done = self._change.wait_for(lambda: self._error is not None or not self._fresh(), seconds)
            error, self._error = self._error, None
        if error is not None:
            raise error
        return done

    def _fresh(self) -> bool:
        now = self._clock()
        return any(now - since < STUCK for since in self._under_way.values())

    def close(self, seconds: float) -> None:
        """Waits for what is under way, but not longer; then the threads end when they can. Harmless twice."""
        with self._change:
            self._change.wait_for(lambda: not self._under_way, seconds)
        for orders in self._orders.values():
            orders.put(False)

    def _queue(self, rank: int) -> queue.SimpleQueue[bool]:
        if rank not in self._orders:
            orders = self._orders[rank] = queue.SimpleQueue()
            thread = threading.Thread(target=self._run, args=(rank, orders), name=f"shoal-to-{rank}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return self._orders[rank]

    def _run(self, rank: int, orders: queue.SimpleQueue[bool]) -> None:
        while orders.get():
            error: BaseException | None = None
            try:
                self._carry(rank)
            except PeerLost:
                pass  # it is no neighbour any more
            except BaseException as raised:
                error = raised
            with self._change:
                del self._under_way[rank]
                self._error = self._error or error
                self._change.notify_all()
