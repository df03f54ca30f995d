"""The life of a job: every state meets every event, and the promises about reasons, retries and time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.job.life import Event, Finished, Gone, JobRecord, Joined, Placed, StopAsked, TimePassed, advance
from shoal.job.reasons import Fault, Reason
from shoal.job.spec import parse
from shoal.job.states import State

NOW = 1_000_000.0
Q, S, R, P = State.QUEUED, State.STARTING, State.RUNNING, State.STOPPING
DONE, FAILED, STOPPED = State.SUCCEEDED, State.FAILED, State.STOPPED

EVENTS: dict[str, Event] = {
    "placed": Placed(("local",)),
    "joined": Joined(),
    "succeeded": Finished(Reason.COMPLETED, "", 0),
    "user_error": Finished(Reason.PYTHON_ERROR, "boom", 1),
    "lost": Finished(Reason.SHEPHERD_LOST, "gone"),
    "stop": StopAsked("ann"),
    "time": TimePassed(),
    "gone": Gone(),
}

# state → what each event leads to; what is not named leaves the record untouched.
TABLE: dict[State, dict[str, State]] = {
    Q: {"placed": S, "stop": STOPPED},
    S: {"joined": R, "succeeded": P, "user_error": P, "lost": P, "stop": P, "gone": Q},
    R: {"succeeded": P, "user_error": P, "lost": P, "stop": P, "gone": Q},
    P: {"gone": DONE},
    DONE: {},
    FAILED: {},
    STOPPED: {},
}


def record(state: State = Q, **changes: Any) -> JobRecord:
    spec = parse({"script": "a.py", "retries": 2, "grace": 5, **changes.pop("spec", {})})
    fresh = JobRecord("j1", "ann", spec, NOW)
    if state is Q:
        return replace(fresh, **changes)
    base = replace(fresh, state=state, attempt=1, placed_at=NOW, started_at=NOW)
    if state is P:
        base = replace(base, outcome=Reason.COMPLETED, stopping_at=NOW, stop_grace=5.0)
    if state.ended:
        base = replace(base, ended_at=NOW)
    return replace(base, **changes)


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("name", list(EVENTS))
def test_every_state_meets_every_event(state: State, name: str) -> None:
    before = record(state)
    after, happened = advance(before, EVENTS[name], NOW + 1)
    expected = TABLE[state].get(name)
    if expected is None:
        assert after == before and happened == ()
    else:
        assert after.state is expected and happened
        assert happened[-1].reason.advice


@given(st.lists(st.sampled_from(list(EVENTS)), max_size=30))
def test_no_sequence_of_events_breaks_the_promises(names: list[str]) -> None:
    now, current = NOW, record()
    for name in names:
        now += 1
        before = current
        current, _ = advance(current, EVENTS[name], now)
        assert before.state.ended <= (current == before), "an ended job never changes"
        assert current.attempt - before.attempt in (0, 1)
        assert (current.state is P) == (current.outcome is not None)
        assert current.state.ended == (current.ended_at is not None)
        assert current.retries_used <= current.spec.retries
        assert current.reason is not None


@pytest.mark.parametrize(
    ("outcome", "end"),
    [
        (Reason.COMPLETED, DONE),
        (Reason.PYTHON_ERROR, FAILED),
        (Reason.OUT_OF_MEMORY, FAILED),
        (Reason.SHEPHERD_LOST, Q),
        (Reason.KILLED, Q),
        (Reason.PORT_CLASH, Q),
        (Reason.USER_STOP, STOPPED),
        (Reason.MAX_DURATION, STOPPED),
    ],
)
def test_only_infrastructure_is_tried_again_unasked(outcome: Reason, end: State) -> None:
    after, _ = advance(record(P, outcome=outcome), Gone(), NOW + 1)
    assert after.state is end


def test_retry_on_any_tries_the_users_errors_again() -> None:
    after, _ = advance(record(P, outcome=Reason.PYTHON_ERROR, spec={"retry_on": "any"}), Gone(), NOW)
    assert after.state is Q and after.retries_used == 1


def test_retries_back_off_and_end() -> None:
    current, pauses, now = record(), [], NOW
    while not current.state.ended:
        current, _ = advance(current, Placed(("local",)), now)
        current, _ = advance(current, Finished(Reason.KILLED, "killed"), now)
        current, _ = advance(current, Gone(), now)
        if current.not_before is not None:
            pauses.append(current.not_before - now)
            now = current.not_before
    assert pauses == [2.0, 4.0]
    assert (current.state, current.attempt, current.reason) == (FAILED, 3, Reason.KILLED)


def test_the_first_outcome_counts() -> None:
    failing, _ = advance(record(R), Finished(Reason.PYTHON_ERROR, "first", 3), NOW + 1)
    after, happened = advance(failing, Finished(Reason.KILLED, "second", 137), NOW + 2)
    assert after == failing and happened == ()
    assert (after.message, after.exit_code) == ("first", 3)


def test_max_duration_stops_with_grace() -> None:
    running = record(R, spec={"max_duration": 60})
    assert advance(running, TimePassed(), NOW + 59)[0] == running
    after, _ = advance(running, TimePassed(), NOW + 60)
    assert (after.state, after.outcome, after.stop_grace) == (P, Reason.MAX_DURATION, 5.0)


def test_an_overrun_is_told_once_and_the_job_goes_on() -> None:
    running = record(R, spec={"estimate": 60})
    after, happened = advance(running, TimePassed(), NOW + 61)
    assert after.state is R and [h.alarm for h in happened] == ["overrun"]
    assert advance(after, TimePassed(), NOW + 62) == (after, ())


def test_an_overrun_stops_the_job_when_asked_to() -> None:
    running = record(R, spec={"estimate": 60, "on_overrun": "stop"})
    after, _ = advance(running, TimePassed(), NOW + 61)
    assert (after.state, after.outcome) == (P, Reason.OVERRUN)


def test_a_second_stop_can_only_shorten_the_grace() -> None:
    stopping, _ = advance(record(R), StopAsked("ann"), NOW)
    assert stopping.stop_grace == 5.0
    forced, _ = advance(stopping, StopAsked("ann", grace=0.0), NOW + 1)
    assert forced.stop_grace == 0.0
    assert advance(forced, StopAsked("ann", grace=60.0), NOW + 2)[0] == forced


def test_every_reason_has_a_fault_and_says_what_to_do() -> None:
    for reason in Reason:
        assert isinstance(reason.fault, Fault) and len(reason.advice) > 20
        assert Reason.of(reason.code) is reason


def test_an_end_raises_the_alarm_of_its_kind() -> None:
    _, good = advance(record(P), Gone(), NOW)
    _, bad = advance(record(P, outcome=Reason.EXIT_CODE), Gone(), NOW)
    assert [good[-1].alarm, bad[-1].alarm] == ["success", "failure"]
