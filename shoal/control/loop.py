"""The control loop: looks at the records, decides, acts. Of all servers on one database the one with the lease acts.

Level-triggered: each round reads what is and does what is missing, so a server killed at any line loses nothing. The
intent is a row before the engine is called, and the engine starts a gang once per key. What an engine cannot tell
("unknown") is never a reason to act.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from shoal._lib import clock
from shoal.control.gangs import Gangs
from shoal.control.parts import Parts, wake_queue
from shoal.control.seating import members_of, programs_of, tasks_of
from shoal.engine.api import Engine, Gang, Liveness
from shoal.errors import LeaseLost, ShoalError, StartFailed, StoreError
from shoal.job.life import JobRecord, TimePassed, advance
from shoal.job.nodes import Placement
from shoal.job.plan import Slot, make_plan
from shoal.job.reasons import Reason
from shoal.job.states import State
from shoal.schedule import Start, Waiting, decide
from shoal.store import Attempt, Lease

LEASE = "control"
LEASE_SECONDS = 15.0
ROUND = 1.0  # seconds between rounds when nothing rings
POLL = 1.0  # seconds between questions to the engines
JOIN_SECONDS = 120.0  # within which all shepherds must have reported
KILL_AFTER = 10.0  # seconds past the grace before the engine is asked to end what is left
QUEUE_LOOK = 200  # jobs looked at in one decision
SWEEP = 5.0  # seconds between looks at what ended gangs left
LEAVE_SECONDS = 60.0  # an ended gang may take this long to leave by itself
TOUCH = 30.0  # seconds between writings of who was seen

log = logging.getLogger("shoal.control")
T = TypeVar("T")


class Loop:
    """One per server. `run` until cancelled; `gangs` is told what to tell the shepherds."""

    def __init__(self, parts: Parts, gangs: Gangs, holder: str | None = None) -> None:
        self._parts = parts
        self._store = parts.store
        self._gangs = gangs
        # Only one server can hold a home, so its successor need not wait for the lease of one that was killed.
        self._holder = holder or parts.home.identity()
        self._lease: Lease | None = None
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="control")
        self._lease_renewed = self._poll_due = self._queue_due = self._touch_due = self._sweep_due = clock.Deadline(0)
        self._queue_seen = -1
        self._leaving: dict[str, clock.Deadline] = {}  # ended gangs that are not cleaned up yet
        self.last_round = 0.0  # seconds the last round took, for the metrics

    def wake_queue(self) -> None:
        """The queue or the room changed: decide again at once."""
        wake_queue(self._parts)

    async def run(self) -> None:
        """Rounds for ever. An unexpected error is logged and the next round goes on from the records."""
        try:
            while True:
                seen = self._parts.bell.number("loop")
                began = time.monotonic()
                try:
                    await self._call(self._round)
                except LeaseLost:
                    self._lease = None
                except Exception:
                    log.exception("a round of the control loop failed; the next one goes on")
                    await asyncio.sleep(ROUND)
                self.last_round = time.monotonic() - began
                await self._parts.bell.wait("loop", seen, ROUND)
        finally:
            if self._lease is not None:
                await asyncio.shield(self._call(self._store.release, self._lease))
            self._threads.shutdown(wait=False)

    async def _call(self, act: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, act, *arguments)

    def _round(self) -> None:
        if self._store.dialect != "sqlite":
            self._gangs.hear_others()
        self._note_seen()
        if not self._hold_lease():
            return
        view = _View(self._store.active(), self._store.open_attempts(), self._parts.default_engine)
        sights = self._look(view)
        for record in view.records.values():
            attempt = view.attempts.get(record.key)
            if attempt is not None:
                self._tend_alone(record, attempt, sights.get(record.key))
        self._decide(view)
        self._clean()

    def _hold_lease(self) -> bool:
        """Takes or renews the lease; a fresh one is not written again for every round."""
        if self._lease is None or self._lease_renewed.left() <= 0:
            self._lease = self._store.lease(LEASE, self._holder, LEASE_SECONDS)
            self._lease_renewed = clock.Deadline(LEASE_SECONDS / 3)
        return self._lease is not None

    # Tending: each active job gets what its record says is missing.

    def _tend_alone(self, record: JobRecord, attempt: Attempt, sight: Liveness | None) -> None:
        """Tends one job; what goes wrong with it is not to hold up the others."""
        try:
            self._tend(record, attempt, sight)
        except (LeaseLost, StoreError):
            raise
        except Exception:
            log.exception("job %s could not be tended; the next round tries again", record.id)

    def _tend(self, record: JobRecord, attempt: Attempt, sight: Liveness | None) -> None:
        if record.state is State.STARTING:
            self._tend_starting(record, attempt, sight)
        elif record.state is State.RUNNING:
            self._tend_running(record, sight)
        else:
            self._tend_stopping(record, attempt, sight)

    def _tend_starting(self, record: JobRecord, attempt: Attempt, sight: Liveness | None) -> None:
        if attempt.handle is None:
            self._start(record, attempt.placement)
        elif sight is not None and sight.gone:
            self._check_lost(record, sight)
        elif record.placed_at is not None and clock.now() - record.placed_at > JOIN_SECONDS:
            missing = _missing(attempt, {shepherd.node for shepherd in self._store.shepherds(record.key)})
            self._gangs.fail(record, Reason.JOIN_TIMEOUT, f"no word from {missing} within {JOIN_SECONDS:.0f} s")

    def _tend_running(self, record: JobRecord, sight: Liveness | None) -> None:
        if sight is not None and sight.gone:
            self._check_lost(record, sight)
            return
        now = clock.now()
        due, _ = advance(record, TimePassed(), now)
        if due != record:
            changed = self._store.advance(record.id, TimePassed(), now, lease=self._lease, attempt=record.attempt)
            self._parts.bell.ring(f"job:{record.id}")
            if changed.state is State.STOPPING:
                self._gangs.end(changed)

    def _tend_stopping(self, record: JobRecord, attempt: Attempt, sight: Liveness | None) -> None:
        self._gangs.end(record)
        if sight is None:
            return
        engine = self._engine(record)
        grace = record.spec.grace if record.stop_grace is None else record.stop_grace
        overdue = record.stopping_at is not None and clock.now() - record.stopping_at > grace + KILL_AFTER
        if sight.over:
            if engine.kill(record.key, attempt.handle or ""):
                self._gangs.settle(record.key)
        elif overdue:
            log.warning("gang %s did not leave %.0f s after its grace; the engine ends it", record.key, KILL_AFTER)
            engine.kill(record.key, attempt.handle or "")

    def _check_lost(self, record: JobRecord, sight: Liveness) -> None:
        """A shepherd that left properly has said so; one that is gone without a word is lost."""
        shepherds = {shepherd.node: shepherd for shepherd in self._store.shepherds(record.key)}
        lost = [node for node in sight.gone if node not in shepherds or shepherds[node].done_at is None]
        if lost and self._still(record):
            self._gangs.lose(record, lost)

    def _still(self, record: JobRecord) -> bool:
        """Whether the record is as it was: the gang may have ended between the two looks."""
        now = self._store.job(record.id)
        return now.attempt == record.attempt and now.state is record.state

    def _look(self, view: _View) -> dict[str, Liveness]:
        """Asks every engine about all its gangs with one question, at most once per POLL."""
        if not self._poll_due.over():
            return {}
        self._poll_due = clock.Deadline(POLL)
        found: dict[str, Liveness] = {}
        for name, engine in self._parts.engines.items():
            handles = {attempt.key: attempt.handle or "" for attempt in view.of_engine(name)}
            if handles:
                found.update(engine.poll(handles))
        return found

    # Deciding and starting.

    def _decide(self, view: _View) -> None:
        """Looks at the queue when something changed in it or a place became free, and once a second besides."""
        rung = self._parts.bell.number("queue")
        if rung == self._queue_seen and not self._queue_due.over():
            return
        self._queue_seen, self._queue_due = rung, clock.Deadline(ROUND)
        queue = self._store.queue(clock.now(), QUEUE_LOOK)
        if not queue:
            return
        records = {record.id: record for record in queue}
        for name, engine in self._parts.engines.items():
            own = [record for record in queue if (record.spec.engine or self._parts.default_engine) == name]
            waiting = [Waiting(record.id, slots) for record in own if (slots := self._slots(record)) is not None]
            held = [attempt.placement for attempt in view.of_engine(name)]
            starts = decide(waiting, engine.nodes(), held).starts
            for start in starts:
                self._place(records[start.job], start)
            if len(starts) == QUEUE_LOOK:
                self.wake_queue()

    def _slots(self, record: JobRecord) -> tuple[Slot, ...] | None:
        """None for a job that an earlier server took and this one no longer serves; it must not hold up the others."""
        try:
            return make_plan(record.spec, self._parts.served).slots
        except ShoalError:
            return None

    def _place(self, record: JobRecord, start: Start) -> None:
        members = members_of(record, start.placement)
        placed = self._store.place(record.id, start.placement, members, clock.now(), self._lease)
        if placed.state is State.STARTING:
            self._parts.bell.ring(f"job:{record.id}")
            self._start(placed, self._store.attempt(placed.key).placement)

    def _start(self, record: JobRecord, placement: Placement) -> None:
        """Hands the gang to its engine. The intent is already a row; calling this twice starts nothing twice."""
        engine = self._engine(record)
        try:
            tasks = tasks_of(self._parts, record, placement)
            handle = engine.start(Gang(record.key, tasks, record.owner, programs_of(record)))
        except StartFailed as failed:
            self._gangs.fail(record, Reason.START_FAILED, failed.message)
            return
        self._store.set_handle(record.key, handle, self._lease)

    # Housekeeping.

    def _note_seen(self) -> None:
        if not self._touch_due.over():
            return
        self._touch_due = clock.Deadline(TOUCH)
        seen = self._gangs.take_seen()
        if seen:
            self._store.touch(seen, clock.now())
        self._gangs.forget({attempt.key for attempt in self._store.open_attempts()})

    def _clean(self) -> None:
        """Gives back what ended gangs left on their engines; one that will not leave is ended."""
        if not self._sweep_due.over():
            return
        self._sweep_due = clock.Deadline(SWEEP)
        live = {attempt.key for attempt in self._store.open_attempts()}
        ended = {
            key: engine for engine in self._parts.engines.values() for key in engine.leftovers() if key not in live
        }
        self._leaving = {key: self._leaving.get(key) or clock.Deadline(LEAVE_SECONDS) for key in ended}
        for key, engine in ended.items():
            if not engine.clean(key) and self._leaving[key].over():
                engine.kill(key)

    def _engine(self, record: JobRecord) -> Engine:
        return self._parts.engine_of(record.spec.engine)


class _View:
    """What one round looks at: the active jobs and their open attempts, read once."""

    def __init__(self, active: tuple[JobRecord, ...], attempts: tuple[Attempt, ...], default_engine: str) -> None:
        self.records = {record.id: record for record in active}
        self.attempts = {attempt.key: attempt for attempt in attempts}
        self._default = default_engine

    def of_engine(self, name: str) -> list[Attempt]:
        return [attempt for attempt in self.attempts.values() if self._engine_of(attempt) == name]

    def _engine_of(self, attempt: Attempt) -> str:
        record = self.records.get(attempt.job_id)
        return (record.spec.engine if record else None) or self._default


def _missing(attempt: Attempt, joined: set[str]) -> str:
    """Who has not come: the names of the nodes, not too many."""
    missing = sorted({berth.node for berth in attempt.placement} - joined)
    return ", ".join(missing[:10]) + (f" and {len(missing) - 10} more" if len(missing) > 10 else "")
