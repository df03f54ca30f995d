"""The loop: intents before acts, nothing twice, nothing killed on "unknown", every end with a reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shoal._lib import clock
from shoal.control import User
from shoal.errors import StartFailed
from shoal.job.plan import Served
from shoal.job.reasons import Reason
from shoal.job.states import State
from tests.control.conftest import ANN, World


def start(world: World, **raw: Any) -> Any:
    job = world.submit(**raw)
    world.round()
    return world.job(job)


def run(world: World, **raw: Any) -> Any:
    job = start(world, **raw)
    world.join_all(job.key)
    return world.job(job)


def test_a_job_goes_from_queue_to_success(world: World) -> None:
    job = run(world, workers=2)
    assert job.state is State.RUNNING
    assert world.told(job.key) == ["launch"]
    world.end_rank(job.key, "worker-0", 1, exit_code=0)
    world.end_rank(job.key, "worker-1", 2, exit_code=0)
    assert world.told(job.key) == ["launch", "stop", "leave"]
    world.leave(job.key)
    ended = world.job(job)
    assert (ended.state, ended.reason, ended.exit_code) == (State.SUCCEEDED, Reason.COMPLETED, 0)


def test_a_failed_rank_stops_the_others_and_names_the_cause(world: World) -> None:
    job = run(world, workers=2)
    world.end_rank(job.key, "worker-1", 1, exit_code=3, tail="Traceback (most recent call last):\nValueError: no")
    assert world.job(job).state is State.STOPPING
    assert "stop" in world.told(job.key)
    world.end_rank(job.key, "worker-0", 2, signal=15)
    world.leave(job.key)
    ended = world.job(job)
    assert (ended.state, ended.reason, ended.exit_code) == (State.FAILED, Reason.PYTHON_ERROR, 3)
    assert "worker-1" in ended.message and "ValueError: no" in ended.message


def test_the_intent_is_stored_before_the_engine_is_called(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    honest = world.engine.start

    def start_and_look(gang: Any) -> str:
        seen.append(world.parts.store.attempt(gang.key).key == gang.key)
        return honest(gang)

    monkeypatch.setattr(world.engine, "start", start_and_look)
    start(world)
    assert seen == [True]


def test_a_server_that_dies_between_intent_and_start_starts_the_gang_once(world: World, make_world: Any) -> None:
    honest = world.engine.start

    def die(gang: Any) -> str:
        honest(gang)
        raise KeyboardInterrupt  # the process ends before the handle is stored

    world.engine.start = die  # type: ignore[method-assign]
    job = world.submit()
    with pytest.raises(KeyboardInterrupt):
        world.round()
    world.engine.start = honest  # type: ignore[method-assign]
    world.parts.store.release(world.loop._lease)  # type: ignore[arg-type]
    successor = make_world(engine=world.engine)
    successor.round()
    assert world.engine.starts == 1
    successor.join_all(successor.job(job).key)
    assert successor.job(job).state is State.RUNNING


def test_two_servers_never_both_act(world: World, make_world: Any) -> None:
    other = make_world(engine=world.engine)
    world.round()
    job = world.submit()
    other.round()
    assert world.job(job).state is State.QUEUED, "the lease is the first one's"
    world.round()
    assert world.job(job).state is State.STARTING and world.engine.starts == 1


def test_unknown_is_not_dead(world: World) -> None:
    job = run(world)
    world.engine.see(job.key, "unknown")
    for _ in range(5):
        world.round()
    assert world.job(job).state is State.RUNNING


def test_a_lost_shepherd_is_tried_again_as_the_infrastructures_fault(world: World) -> None:
    job = run(world, retries=1)
    world.engine.see(job.key, "gone")
    world.round()
    world.round()
    waiting = world.job(job)
    assert (waiting.state, waiting.retries_used, waiting.reason) == (State.QUEUED, 1, Reason.BACKOFF)
    assert "sim-0 vanished" in waiting.message


def test_a_start_that_fails_has_a_reason_and_is_tried_again(world: World) -> None:
    world.engine.refuse = "no more processes"
    job = start(world, retries=0)
    world.round()
    ended = world.job(job)
    assert (ended.state, ended.reason) == (State.FAILED, Reason.START_FAILED)
    assert "no more processes" in ended.message
    with pytest.raises(StartFailed):
        world.engine.start(None)  # type: ignore[arg-type]


def test_shepherds_that_do_not_join_in_time_are_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = start(world, retries=0)
    later = clock.now() + 121
    monkeypatch.setattr(clock, "now", lambda: later)
    world.round()
    stopping = world.job(job)
    assert (stopping.state, stopping.outcome) == (State.STOPPING, Reason.JOIN_TIMEOUT)
    assert "sim-0" in stopping.message


def test_stop_asks_first_and_ends_what_ignores_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = run(world, grace=3)
    world.desk.stop(ANN, job.id)
    world.round()
    assert world.told(job.key) == ["launch", "stop", "leave"]
    later = clock.now() + 14
    monkeypatch.setattr(clock, "now", lambda: later)
    world.round()  # the engine is told to end it
    world.round()  # and sees that it is gone
    assert (world.job(job).state, world.job(job).reason) == (State.STOPPED, Reason.USER_STOP)


def test_a_forced_stop_after_a_gentle_one_is_told_at_once(world: World) -> None:
    job = run(world, grace=60)
    world.desk.stop(ANN, job.id)
    world.round()
    world.desk.stop(ANN, job.id, grace=0)
    world.round()
    assert world.told(job.key) == ["launch", "stop", "leave", "kill"]


def test_max_duration_and_estimate_are_watched(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = run(world, estimate=10, max_duration=20)
    began = clock.now()
    monkeypatch.setattr(clock, "now", lambda: began + 11)
    world.round()
    assert world.job(job).overran and world.job(job).state is State.RUNNING
    monkeypatch.setattr(clock, "now", lambda: began + 21)
    world.round()
    assert world.job(job).outcome is Reason.MAX_DURATION
    kinds = [event.kind for event in world.parts.store.events(job.id)]
    assert "overrun" in kinds and "time_up" in kinds


def test_nothing_is_over_committed_and_the_queue_moves_up(world: World) -> None:
    jobs = [world.submit(resources={"cpu": 1}) for _ in range(4)]
    world.round()
    assert [world.job(job).state.value for job in jobs] == ["starting", "starting", "queued", "queued"]
    first = world.job(jobs[0])
    world.join_all(first.key)
    world.end_rank(first.key, "worker-0", 1, exit_code=0)
    world.leave(first.key)
    world.round()
    assert [world.job(job).state.value for job in jobs[1:]] == ["starting", "starting", "queued"]


def test_priority_goes_first(world: World) -> None:
    running = start(world, resources={"cpu": 2})
    low, high = world.submit(resources={"cpu": 2}), world.submit(resources={"cpu": 2}, priority="high")
    world.join_all(running.key)
    world.end_rank(running.key, "worker-0", 1, exit_code=0)
    world.leave(running.key)
    world.round()
    assert (world.job(low).state, world.job(high).state) == (State.QUEUED, State.STARTING)


def test_a_rank_whose_role_restarts_is_started_again_with_a_new_roster(world: World) -> None:
    job = run(world, roles={"worker": {"count": 2, "on_lost": "restart"}})
    world.end_rank(job.key, "worker-1", 1, signal=9)
    assert world.told(job.key) == ["launch", "restart", "roster"]
    assert world.parts.store.attempt(job.key).roster_version == 2
    assert world.job(job).state is State.RUNNING
    world.end_rank(job.key, "worker-1", 2, incarnation=1, exit_code=0)
    world.end_rank(job.key, "worker-0", 3, exit_code=0)
    assert world.job(job).outcome is Reason.COMPLETED


def test_a_role_that_continues_goes_on_without_a_lost_node(make_world: Any) -> None:
    world = make_world(nodes=2, cpus=1)
    role = {"count": 2, "on_lost": "continue", "resources": {"cpu": 1}}
    job = run(world, roles={"worker": role})
    world.engine.see(job.key, "gone", "sim-1")
    for _ in range(3):
        world.round()
    assert world.job(job).state is State.RUNNING
    states = {rank.name: rank.state for rank in world.parts.store.ranks(job.key)}
    assert states == {"worker-0": "waiting", "worker-1": "gone"}
    world.end_rank(job.key, "worker-0", 1, exit_code=0)
    world.leave(job.key)
    world.round()
    assert world.job(job).state is State.SUCCEEDED


def test_what_ended_gangs_left_is_cleaned_up(world: World) -> None:
    job = run(world)
    world.end_rank(job.key, "worker-0", 1, exit_code=0)
    world.leave(job.key)
    world.round()
    assert world.engine.leftovers() == ()


def test_a_foreign_job_is_not_found(world: World) -> None:
    job = world.submit()
    with pytest.raises(Exception, match="no job"):
        world.desk.show(User("bob"), job.id)
    assert world.desk.show(User("root", admin=True), job.id)["id"] == job.id
    assert replace(job) == job


def test_outputs_that_cannot_be_put_away_are_said_and_the_job_ends(world: World) -> None:
    job = run(world, outputs="pool://me/models")
    folder = world.parts.home.work / job.id / "outputs"
    folder.mkdir(parents=True)
    (folder / "model-\udcff.pt").write_bytes(b"a name that is not UTF-8")
    world.end_rank(job.key, "worker-0", 1, exit_code=0)
    world.leave(job.key)
    assert world.job(job).state is State.SUCCEEDED
    events = world.parts.store.events(job.id)
    assert any(event.kind == "outputs_failed" and "not UTF-8" in event.message for event in events)


def test_a_job_that_cannot_be_tended_does_not_hold_up_the_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(world)
    honest = world.loop._tend

    def stumble(record: Any, *rest: Any) -> None:
        if record.id == first.id:
            raise RuntimeError("a fault of ours")
        honest(record, *rest)

    monkeypatch.setattr(world.loop, "_tend", stumble)
    assert start(world).state is State.STARTING


def test_a_serving_rank_that_ends_because_the_job_is_done_is_not_started_again(world: World) -> None:
    roles = {"worker": {"count": 1}, "evaluator": {"count": 1, "on_lost": "restart"}}
    job = run(world, roles=roles)
    world.end_rank(job.key, "worker-0", 1, exit_code=0)
    world.end_rank(job.key, "evaluator-0", 2, signal=15)
    assert "restart" not in world.told(job.key)


def test_a_gang_that_was_placed_on_nodes_that_are_no_more_is_tried_again(make_world: Any) -> None:
    """The server died between placing and starting, and came back with other nodes."""
    before = make_world(nodes=2)
    job = before.submit(workers=2, resources={"cpu": 2}, retries=1)
    before.engine.start = lambda gang: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        before.round()
    assert before.job(job).state is State.STARTING
    before.parts.store.release(before.loop._lease)
    after = make_world(nodes=1)
    after.round()
    record = after.job(job)
    assert (record.state, record.outcome) == (State.STOPPING, Reason.START_FAILED)
    after.round()
    assert after.job(job).state is State.QUEUED
    other = after.submit()
    after.round()
    assert after.job(other).state is State.STARTING


def test_a_job_that_nobody_serves_any_more_does_not_hold_up_the_queue(world: World) -> None:
    old = world.submit()
    world.loop._parts = replace(world.parts, served=Served(frameworks=("pytorch",), engines=("simulated",)))
    world.round()
    assert world.job(old).state is State.QUEUED
