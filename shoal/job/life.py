"""The life of a job as a pure function: (record, event, now) → (record, what happened).

The record alone says what must be done next (a `starting` job needs its gang started, a `stopping` one ended), so a
server that dies between two lines loses nothing: the next one reads the record and goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from shoal._lib.backoff import delay
from shoal._lib.quantities import format_duration
from shoal.job.reasons import Reason
from shoal.job.spec import JobSpec
from shoal.job.states import State

FIRST_PAUSE = 2.0  # seconds before the first retry
LONGEST_PAUSE = 300.0
MOST_NAMED = 8  # nodes named in a message


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job: what was asked for, and where its life stands."""

    id: str
    owner: str
    spec: JobSpec
    created_at: float
    seq: int = 0
    state: State = State.QUEUED
    reason: Reason = Reason.ADMITTED
    message: str = ""
    exit_code: int | None = None
    attempt: int = 0  # 0 before the first
    retries_used: int = 0
    not_before: float | None = None  # queued, but not before this time
    placed_at: float | None = None
    started_at: float | None = None
    stopping_at: float | None = None
    ended_at: float | None = None
    outcome: Reason | None = None  # while stopping: what it will have ended with
    stop_grace: float | None = None  # while stopping: seconds from SIGTERM to SIGKILL
    overran: bool = False
    manifest: str | None = None
    in_place: str | None = None

    @property
    def key(self) -> str:
        """The submit key of the current attempt: the engine starts a gang once per key."""
        return f"{self.id}-{self.attempt}"

    @property
    def project(self) -> str:
        return self.spec.project


# What can happen to a job. A closed set; `advance` answers to every one of them in every state.


@dataclass(frozen=True, slots=True)
class Placed:
    """The scheduler reserved nodes for it."""

    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Joined:
    """The gang is complete and its ranks were told to start."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The gang's outcome is known: success, a rank's failure, a refused start, a lost shepherd."""

    reason: Reason
    message: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class StopAsked:
    by: str
    message: str = ""
    grace: float | None = None  # 0 = at once


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The clock: estimates, limits and pauses are judged against `now`."""


@dataclass(frozen=True, slots=True)
class Gone:
    """Nothing of the gang is left: processes ended, place given back."""


Event = Placed | Joined | Finished | StopAsked | TimePassed | Gone


@dataclass(frozen=True, slots=True)
class Happening:
    """One line of the job's history; `alarm` names the alert to raise, if any."""

    kind: str
    reason: Reason
    message: str
    alarm: str | None = None
    data: dict[str, Any] | None = None


Step = tuple[JobRecord, tuple[Happening, ...]]


def advance(record: JobRecord, event: Event, now: float) -> Step:
    """The next record and what happened. An event that means nothing in this state changes nothing."""
    if record.state.ended:
        return record, ()
    if isinstance(event, Placed):
        return _place(record, event, now)
    if isinstance(event, Joined):
        return _run(record, now)
    if isinstance(event, Finished):
        return _finish(record, event, now)
    if isinstance(event, StopAsked):
        return _stop(record, event, now)
    if isinstance(event, TimePassed):
        return _watch_time(record, now)
    return _settle(record, now)


def _place(record: JobRecord, event: Placed, now: float) -> Step:
    if record.state is not State.QUEUED:
        return record, ()
    where = ", ".join(event.nodes) if len(event.nodes) <= MOST_NAMED else f"{len(event.nodes)} nodes"
    message = f"attempt {record.attempt + 1} placed on {where}"
    placed = replace(
        record,
        state=State.STARTING,
        reason=Reason.PLACED,
        message=message,
        attempt=record.attempt + 1,
        placed_at=now,
        started_at=None,
        stopping_at=None,
        not_before=None,
        outcome=None,
        stop_grace=None,
        exit_code=None,
        overran=False,
    )
    return placed, (Happening("placed", Reason.PLACED, message),)


def _run(record: JobRecord, now: float) -> Step:
    if record.state is not State.STARTING:
        return record, ()
    running = replace(record, state=State.RUNNING, reason=Reason.RUNNING, message="", started_at=now)
    return running, (Happening("running", Reason.RUNNING, f"attempt {record.attempt} runs"),)


def _finish(record: JobRecord, event: Finished, now: float) -> Step:
    """The first outcome counts: a rank that dies because the others are being stopped is not the cause."""
    if record.state not in (State.STARTING, State.RUNNING):
        return record, ()
    ending = _stopping(record, event.reason, event.message, now, record.spec.grace, event.exit_code)
    return ending, (Happening("finished", event.reason, event.message, data={"exit_code": event.exit_code}),)


def _stop(record: JobRecord, event: StopAsked, now: float) -> Step:
    message = event.message or f"stopped by {event.by}"
    if record.state is State.QUEUED:
        ended = replace(
            record,
            state=State.STOPPED,
            reason=Reason.USER_STOP,
            message=message,
            ended_at=now,
            not_before=None,
        )
        return ended, (Happening("stopped", Reason.USER_STOP, message),)
    grace = record.spec.grace if event.grace is None else event.grace
    if record.state is State.STOPPING:
        if record.stop_grace is not None and grace >= record.stop_grace:
            return record, ()
        return replace(record, stop_grace=grace), (Happening("stop_asked", Reason.USER_STOP, message),)
    ending = _stopping(record, Reason.USER_STOP, message, now, grace, None)
    return ending, (Happening("stop_asked", Reason.USER_STOP, message),)


def _watch_time(record: JobRecord, now: float) -> Step:
    if record.state is not State.RUNNING or record.started_at is None:
        return record, ()
    spec, elapsed = record.spec, now - record.started_at
    if spec.max_duration is not None and elapsed >= spec.max_duration:
        message = f"reached max_duration {format_duration(spec.max_duration)}"
        ending = _stopping(record, Reason.MAX_DURATION, message, now, spec.grace, None)
        return ending, (Happening("time_up", Reason.MAX_DURATION, message),)
    if spec.estimate is not None and elapsed >= spec.estimate and not record.overran:
        message = f"runs longer than its estimate {format_duration(spec.estimate)}"
        happening = Happening("overrun", Reason.OVERRUN, message, alarm="overrun")
        if spec.on_overrun == "stop":
            ending = _stopping(replace(record, overran=True), Reason.OVERRUN, message, now, spec.grace, None)
            return ending, (happening,)
        return replace(record, overran=True), (happening,)
    return record, ()


def _settle(record: JobRecord, now: float) -> Step:
    """Nothing is left of the gang: the job ends, or waits for its next try."""
    if record.state is State.QUEUED:
        return record, ()
    if record.state is not State.STOPPING or record.outcome is None:
        return _settle(_stopping(record, Reason.SHEPHERD_LOST, "the gang vanished", now, 0.0, None), now)
    outcome = record.outcome
    if outcome is Reason.COMPLETED:
        return _end(record, State.SUCCEEDED, now, "success")
    if outcome in (Reason.USER_STOP, Reason.MAX_DURATION, Reason.OVERRUN):
        return _end(record, State.STOPPED, now, None)
    if _may_retry(record, outcome):
        return _retry(record, outcome, now)
    return _end(record, State.FAILED, now, "failure")


def _may_retry(record: JobRecord, outcome: Reason) -> bool:
    willing = outcome.retryable or record.spec.retry_on == "any"
    return willing and record.retries_used < record.spec.retries


def _retry(record: JobRecord, outcome: Reason, now: float) -> Step:
    pause = delay(record.retries_used, FIRST_PAUSE, LONGEST_PAUSE, jitter=0.0)
    used = record.retries_used + 1
    cause = record.message or outcome.code
    message = f"try {used} of {record.spec.retries} again in {format_duration(pause)} after: {cause}"
    waiting = replace(
        record,
        state=State.QUEUED,
        reason=Reason.BACKOFF,
        message=message,
        retries_used=used,
        not_before=now + pause,
        outcome=None,
        stopping_at=None,
        placed_at=None,
    )
    return waiting, (Happening("retry", outcome, message),)


def _end(record: JobRecord, state: State, now: float, alarm: str | None) -> Step:
    assert record.outcome is not None
    ended = replace(record, state=state, reason=record.outcome, ended_at=now, outcome=None)
    return ended, (Happening(state.value, record.outcome, record.message, alarm=alarm),)


def _stopping(
    record: JobRecord, outcome: Reason, message: str, now: float, grace: float, exit_code: int | None
) -> JobRecord:
    return replace(
        record,
        state=State.STOPPING,
        reason=outcome,
        outcome=outcome,
        message=message,
        exit_code=exit_code,
        stopping_at=now,
        stop_grace=grace,
    )
