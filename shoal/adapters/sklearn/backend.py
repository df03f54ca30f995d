"""The back end that joblib calls `shoal`: one `Parallel` becomes tasks on the chief's desk.

In a process that is no chief of a job (alone, in a worker, in a forked child) it hands over to loky, joblib's own.
"""

from __future__ import annotations

import atexit
import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from pickle import PicklingError
from typing import Any

import joblib  # type: ignore[import-untyped]
from joblib.parallel import (  # type: ignore[import-untyped]
    AutoBatchingMixin,
    FallbackToBackend,
    LokyBackend,
    ParallelBackendBase,
    SequentialBackend,
    register_parallel_backend,
)

from shoal.adapters.sklearn.desk import ORDERS, TASKS, Call, Desk, Orders, Tasks
from shoal.adapters.sklearn.parcels import SHARED, Marks, pack
from shoal.adapters.sklearn.place import Place
from shoal.train.wire.host import Host, Service, listen

NAME = "shoal"
FAREWELL = 2.0  # seconds in which workers hear that the work is over

_log = logging.getLogger("shoal.joblib")


class Office:
    """The desk of this process and the host that workers call."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.desk = Desk()
        self.pid = os.getpid()
        services: dict[str, Service] = {TASKS: Tasks(self.desk), ORDERS: Orders(self.desk)}
        self._host = Host(place.secret, services, listener=_bound(place)).start()
        atexit.register(self.close)

    def close(self) -> None:
        """Sends everybody home. Harmless twice, and in a forked child."""
        if os.getpid() != self.pid:
            return
        self.desk.close()
        until = time.monotonic() + FAREWELL
        while self._host.peers() and time.monotonic() < until:
            time.sleep(0.01)
        self._host.close()


_office: Office | None = None
_opening = threading.Lock()


def office() -> Office | None:
    """This process's; None where it is no chief. Opened by the first who asks."""
    global _office
    with _opening:
        if _office is None:
            place = Place.read()
            if place is None or not place.leads:
                return None
            try:
                _office = Office(place)
            except OSError as taken:
                if taken.errno != errno.EADDRINUSE:
                    raise
                return None  # a child of the chief that inherited its variables
        return _office if _office.pid == os.getpid() else None


class ShoalBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """One call of `Parallel` at a time, as joblib uses its back ends."""

    supports_retrieve_callback = True
    supports_return_generator = True
    supports_timeout = True
    default_n_jobs = 1

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None:
            return 1
        here = office()
        if here is None:
            return int(LokyBackend(nesting_level=self.nesting_level).effective_n_jobs(n_jobs))
        slots = max(1, here.place.workers())
        return max(slots + 1 + n_jobs, 1) if n_jobs < 0 else min(n_jobs, slots)

    def configure(
        self,
        n_jobs: int = 1,
        parallel: Any = None,
        max_nbytes: int | None = SHARED,
        mmap_mode: str | None = "r",
        **_other: Any,
    ) -> int:
        here = office()
        if here is None:
            _note_alone()
            raise FallbackToBackend(LokyBackend(nesting_level=self.nesting_level))
        count = self.effective_n_jobs(n_jobs)
        if count == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        self.parallel = parallel
        self._desk = here.desk
        self._call = Call(count)
        # As with loky: large arrays are shared and read-only, unless the script asks for others.
        self._shared = max_nbytes if mmap_mode == "r" else None
        self._marks = Marks(self._shared)
        return count

    def start_call(self) -> None:
        self._marks = Marks(self._shared)

    def stop_call(self) -> None:
        self._marks = Marks(self._shared)

    def submit(self, func: Callable[[], Any], callback: Callable[[Future[Any]], None] | None = None) -> Future[Any]:
        try:
            future = self._desk.submit(pack(func, self._marks), self._call)
        except Exception as wrong:
            future = Future()
            refused = PicklingError(f"a task cannot be sent to a worker: {wrong}")
            refused.__cause__ = wrong
            future.set_exception(refused)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    apply_async = submit  # its name before joblib 1.5

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        self._desk.abandon(self._call)
        self._call = Call(self._call.limit)

    def terminate(self) -> None:
        self.reset_batch_stats()

    def __reduce__(self) -> tuple[type[ShoalBackend], tuple[()]]:
        return ShoalBackend, ()


def register() -> None:
    """Makes the name `shoal` known to joblib. Harmless twice."""
    register_parallel_backend(NAME, ShoalBackend)


def use_everywhere() -> None:
    """`shoal` wherever the script names no other back end, also in its threads."""
    register_parallel_backend(NAME, ShoalBackend, make_default=True)
    # The default alone would give way to `prefer="threads"`, which is how forests ask; a context of this thread is not.
    joblib.parallel_config(backend=NAME)


@cache
def _note_alone() -> None:
    _log.warning(
        "shoal.joblib: this process has no workers, so joblib's own back end 'loky' is used; "
        "'shoal run SCRIPT --framework sklearn --workers N' gives it some"
    )


def _bound(place: Place) -> Any:
    try:
        return listen(place.host, place.port)
    except OSError as failed:
        if failed.errno != errno.EADDRNOTAVAIL:
            raise
        return listen("", place.port)  # a translated address is none of this machine's
