"""What shepherds say and hear."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from shoal.contract import Roster
from shoal.errors import BadSpec, GangOver, NotSignedIn
from tests.control.conftest import ANN, World, log_batch


def running(world: World, **raw: object) -> str:
    job = world.submit(**raw)
    world.round()
    key = world.job(job).key
    world.join_all(key)
    return key


def test_only_the_gangs_own_secret_opens_the_door(world: World) -> None:
    key = running(world)
    world.gangs.check(key, world.secret(key))
    with pytest.raises(NotSignedIn):
        world.gangs.check(key, world.secret("other-1"))
    with pytest.raises(GangOver):
        world.gangs.check("other-1", world.secret("other-1"))


def test_an_ended_gang_is_told_so_but_its_last_logs_are_taken(world: World) -> None:
    key = running(world)
    world.end_rank(key, "worker-0", 1, exit_code=0)
    world.leave(key)
    with pytest.raises(GangOver):
        world.gangs.check(key, world.secret(key))
    world.gangs.check(key, world.secret(key), late=True)


def test_joining_twice_is_joining_once(world: World) -> None:
    key = running(world)
    world.join_all(key)
    assert world.told(key) == ["launch"]


def test_the_roster_tells_everybody_the_same(world: World) -> None:
    key = running(world, workers=2, servers=1)
    roster = Roster.from_json(gzip.decompress(world.gangs.roster(key)).decode())
    assert [member.name for member in roster.members] == ["server-0", "worker-0", "worker-1"]
    assert all(member.ports["main"] >= 1000 for member in roster.members)


def test_launch_says_what_the_ranks_run_in_and_what_pip_is_told(world: World) -> None:
    key = running(world, environment="sklearn-1.7", env={"A": "b", "PIP_INDEX_URL": "https://example.com"})
    told = world.gangs.launch(key, "sim-0")["environment"]
    assert (told["kind"], told["lines"][0]) == ("preset", "scikit-learn==1.7.2")
    assert told["settings"] == {"PIP_INDEX_URL": "https://example.com"}
    assert world.gangs.launch(running(world), "sim-0")["environment"] is None


def test_launch_says_how_old_an_interpreter_may_be_where_something_of_shoal_runs_in_it(world: World) -> None:
    cases = (("pytorch", None, "3.10"), ("pytorch", "native", ""), ("command", None, ""))
    for framework, strategy, oldest in cases:
        key = running(world, environment="/usr/bin/python3", framework=framework, strategy=strategy)
        assert world.gangs.launch(key, "sim-0")["environment"]["oldest"] == oldest


def test_what_ranks_wait_for_is_said_by_the_job_until_they_start(world: World) -> None:
    key = running(world, workers=2)
    waits = {"event": "preparing", "incarnation": 0, "message": "building environment x on sim-0"}
    events = [{"n": 1, "member": "worker-0", **waits}, {"n": 2, "member": "worker-1", **waits}]
    world.gangs.ranks(key, {"node": "sim-0", "events": events})
    job = key.rpartition("-")[0]
    assert world.desk.why(ANN, job)["message"] == world.desk.show(ANN, job)["message"] == waits["message"]
    history = [event.message for event in world.parts.store.events(job) if event.kind == "preparing"]
    assert history == [waits["message"]]
    started = [{"n": 3 + i, "member": f"worker-{i}", "event": "started", "incarnation": 0, "pid": 1} for i in (0, 1)]
    world.gangs.ranks(key, {"node": "sim-0", "events": started})
    assert world.desk.why(ANN, job)["message"] == "it is running"


def test_launch_gives_each_rank_its_command_and_environment(world: World) -> None:
    key = running(world, workers=2, env={"A": "b"})
    told = world.gangs.launch(key, "sim-0")
    assert [process["name"] for process in told["processes"]] == ["worker-0", "worker-1"]
    first = told["processes"][0]
    assert first["argv"] == ["true"]
    assert (first["env"]["A"], first["env"]["SHOAL_RANK"], first["env"]["SHOAL_GANG"]) == ("b", "0", key)
    assert world.secret(key) not in json.dumps(told), "a rank never learns its shepherd's secret"


def test_directives_are_shown_once_and_in_order(world: World) -> None:
    key = running(world)
    first = world.gangs.directives(key, "sim-0", 0)
    assert [d["kind"] for d in first] == ["launch"]
    assert world.gangs.directives(key, "sim-0", first[-1]["seq"]) == []
    world.gangs.direct(key, "stacks", {}, node="sim-0")
    assert [d["kind"] for d in world.gangs.directives(key, "sim-0", first[-1]["seq"])] == ["stacks"]


def test_logs_are_taken_by_offset_neither_lost_nor_doubled(world: World) -> None:
    key = running(world)
    one, two = log_batch("worker-0", 0, b"first\n"), None
    end = world.gangs.logs(key, one)["offsets"]["worker-0"]
    two = log_batch("worker-0", end, b"second\n")
    assert world.gangs.logs(key, two)["offsets"]["worker-0"] > end
    assert world.gangs.logs(key, one + two) == world.gangs.logs(key, two), "sent again, nothing changes"
    gap = log_batch("worker-0", 10_000, b"later\n")
    assert world.gangs.logs(key, gap)["offsets"]["worker-0"] < 10_000
    job = key.rsplit("-", 1)[0]
    lines = [text for batch in world.parts.logs.read_lines(job) for _, _, text in batch.lines]
    assert lines == ["first", "second"]


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_truncated_batch_is_refused(world: World, cut: int) -> None:
    key = running(world)
    whole = log_batch("worker-0", 0, b"a line\n")
    with pytest.raises(BadSpec, match="whole"):
        world.gangs.logs(key, whole[:-cut])


def test_ends_of_ranks_told_twice_count_once(world: World) -> None:
    key = running(world, roles={"worker": {"count": 1, "on_lost": "restart"}})
    for _ in range(3):
        world.end_rank(key, "worker-0", 1, exit_code=1)
    assert world.told(key).count("restart") == 1


def test_every_node_is_told_to_launch(make_world: Any) -> None:
    world = make_world(nodes=3, cpus=1)
    key = running(world, workers=3, resources={"cpu": 1})
    assert [world.told(key, f"sim-{i}") for i in range(3)] == [["launch"]] * 3


def test_a_secret_that_is_not_even_text_is_a_wrong_one(world: World) -> None:
    key = running(world)
    with pytest.raises(NotSignedIn):
        world.gangs.check(key, "\xff\xfe")


def test_a_gang_writes_the_logs_of_its_own_ranks_only(world: World) -> None:
    key = running(world, workers=2)
    world.gangs.logs(key, log_batch("worker-1", 0, b"one\n") + log_batch("worker-1.samples", 0, b"{}\n"))
    for name in ("worker-2", "server-0", "x", "worker-1.samples.samples"):
        with pytest.raises(BadSpec, match="no rank that writes"):
            world.gangs.logs(key, log_batch(name, 0, b"one\n"))


def test_a_role_that_may_lose_ranks_but_lost_all_of_them_has_failed(make_world: Any) -> None:
    world = make_world(nodes=2, cpus=1)
    roles = {"worker": {"count": 2, "on_lost": "continue", "resources": {"cpu": 1}}}
    key = running(world, roles=roles, retries=0)
    world.engine.see(key, "gone", "sim-0")
    world.round()
    record = world.parts.store.job(key.rpartition("-")[0])
    assert record.state == "running"
    world.engine.see(key, "gone")
    for _ in range(3):
        world.round()
    record = world.parts.store.job(record.id)
    assert (record.state, record.reason.code) == ("failed", "shepherd_lost")


def test_a_role_whose_last_rank_is_lost_after_the_others_ended_is_done(make_world: Any) -> None:
    """Nobody else would be heard of any more, and the servers would be waited for without end."""
    world = make_world(nodes=1, cpus=3)
    roles = {"worker": {"count": 2, "on_lost": "continue"}, "server": {"count": 1}}
    key = running(world, roles=roles)
    world.end_rank(key, "worker-0", 1, exit_code=0)
    world.end_rank(key, "worker-1", 2, exit_code=1)
    record = world.parts.store.job(key.rpartition("-")[0])
    assert (record.state, record.reason.code) == ("stopping", "completed")
    told = [event.message for event in world.parts.store.events(record.id) if event.kind == "rank_gone"]
    assert told == ["worker-1 on sim-0 exited with 1; its role goes on without it"]


def test_a_launch_is_heard_also_by_a_node_that_asked_at_the_very_moment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its question is answered from before the launch, and what it remembers comes after."""
    job = world.submit()
    world.round()
    key = world.job(job).key
    real = world.parts.store.directives

    def slow(asked: str, node: str, after: int) -> list[dict[str, Any]]:
        found = real(asked, node, after)
        if node == "sim-0" and not found:
            monkeypatch.setattr(world.parts.store, "directives", real)
            world.join_all(key)
        return found

    monkeypatch.setattr(world.parts.store, "directives", slow)
    assert world.told(key) == []
    assert world.told(key) == ["launch"]


def test_the_newest_directive_is_the_largest_whoever_speaks_last(world: World) -> None:
    key = running(world)
    known = world.gangs._known[key]
    known.note("sim-0", 9)
    known.note("sim-0", 7)
    assert known.newest["sim-0"] == 9


def leave_outputs(world: World, key: str, name: str = "model") -> None:
    folder = world.parts.home.work / key.rpartition("-")[0] / "outputs"
    folder.mkdir(parents=True)
    (folder / name).write_text("weights")


def test_outputs_are_put_away_once_however_often_the_gang_says_goodbye(world: World) -> None:
    key = running(world, outputs="pool://me/models")
    leave_outputs(world, key)
    world.end_rank(key, "worker-0", 1, exit_code=0)
    for _ in range(3):
        world.leave(key)
        world.round()
    events = world.parts.store.events(key.rpartition("-")[0])
    assert [event.kind for event in events].count("outputs") == 1
    assert [file["path"] for file in world.parts.store.files("ann").items] == ["models/model"]


def test_who_says_goodbye_does_not_wait_for_the_outputs(world: World) -> None:
    later: list[Any] = []
    world.gangs._later = later.append
    key = running(world, outputs="pool://me/models")
    leave_outputs(world, key)
    world.end_rank(key, "worker-0", 1, exit_code=0)
    for _ in range(3):
        world.leave(key)
    assert len(later) == 1
    job = world.parts.store.job(key.rpartition("-")[0])
    assert job.state == "stopping"
    later[0]()
    assert world.parts.store.job(job.id).state == "succeeded"


def test_outputs_that_are_a_link_bring_nothing_of_elsewhere(world: World) -> None:
    key = running(world, outputs="pool://me/models")
    elsewhere = world.parts.home.root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "secret").write_text("not his")
    work = world.parts.home.work / key.rpartition("-")[0]
    work.mkdir()
    (work / "outputs").symlink_to(elsewhere)
    world.end_rank(key, "worker-0", 1, exit_code=0)
    world.leave(key)
    job = work.name
    assert world.parts.store.job(job).state == "succeeded"
    assert world.parts.store.files("ann").items == ()
    assert any(event.kind == "outputs_failed" for event in world.parts.store.events(job))


def test_what_is_remembered_of_a_gang_that_another_server_closed_is_forgotten(world: World) -> None:
    key = running(world)
    world.gangs.forget({key})
    assert world.gangs.knows(key)
    world.gangs.forget(set())
    assert not world.gangs.knows(key)
    world.gangs.check(key, world.secret(key))


def test_an_end_that_was_written_down_but_not_judged_is_judged_when_told_again(world: World) -> None:
    key = running(world)
    event = {"n": 1, "member": "worker-0", "incarnation": 0, "event": "ended", "at": 1.0, "exit_code": 0}
    world.parts.store.rank_events(key, "sim-0", [event], 1.0)  # and here the server was killed
    world.gangs.ranks(key, {"node": "sim-0", "events": [event]})
    assert "leave" in world.told(key)
