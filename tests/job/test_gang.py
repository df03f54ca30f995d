"""What the ends of ranks mean for their gang."""

from __future__ import annotations

import pytest

from shoal.job.gang import MOST_RESTARTS, RankEnd, RankLife, aborted_after_end, can_spare, explain, judge
from shoal.job.reasons import Reason
from shoal.job.roles import Role
from shoal.job.spec import parse

OK = RankEnd(exit_code=0)
BAD = RankEnd(exit_code=3, tail="something\nwent wrong\n")
TRACEBACK = "Traceback (most recent call last):\n  File x\n"


def roles(on_lost: str = "fail", count: object = 2) -> tuple[Role, ...]:
    raw = {"command": ["x"], "roles": {"worker": {"count": count, "on_lost": on_lost}, "server": {"count": 1}}}
    return parse(raw).expand()


def rank(name: str, state: str = "running", end: RankEnd | None = None, incarnation: int = 0) -> RankLife:
    return RankLife(name, name.split("-")[0], "local", "ended" if end else state, incarnation, end)


def test_the_job_is_done_when_its_workers_are_though_servers_still_run() -> None:
    verdict = judge(roles(), [rank("worker-0", end=OK), rank("worker-1", end=OK), rank("server-0")])
    assert verdict.done and verdict.failed is None


def test_one_worker_that_is_done_does_not_end_the_others() -> None:
    verdict = judge(roles(), [rank("worker-0", end=OK), rank("worker-1"), rank("server-0")])
    assert not verdict.done and verdict.failed is None and not verdict.restart


def test_a_failed_rank_fails_the_attempt_and_is_named_with_its_code() -> None:
    verdict = judge(roles(), [rank("worker-0"), rank("worker-1", end=BAD), rank("server-0")])
    assert (verdict.failed, verdict.exit_code, verdict.blamed) == (Reason.EXIT_CODE, 3, ("worker-1",))
    assert "worker-1 on local" in verdict.message and "went wrong" in verdict.message


def test_a_server_that_dies_fails_the_attempt_too() -> None:
    verdict = judge(roles(), [rank("worker-0"), rank("worker-1"), rank("server-0", end=RankEnd(signal=9))])
    assert verdict.failed is Reason.KILLED


def test_restart_names_the_rank_until_it_was_restarted_too_often() -> None:
    assert judge(roles("restart"), [rank("worker-0", end=BAD), rank("worker-1"), rank("server-0")]).restart == (
        "worker-0",
    )
    tired = [rank("worker-0", end=BAD, incarnation=MOST_RESTARTS), rank("worker-1"), rank("server-0")]
    assert judge(roles("restart"), tired).failed is Reason.EXIT_CODE


def test_continue_goes_on_without_the_rank_while_enough_are_left() -> None:
    ranks = [rank("worker-0", end=BAD), rank("worker-1"), rank("server-0")]
    assert judge(roles("continue"), ranks).drop == ("worker-0",)
    both = [rank("worker-0", end=BAD), rank("worker-1", end=BAD), rank("server-0")]
    assert judge(roles("continue"), both).failed is Reason.EXIT_CODE


def test_the_last_one_to_be_waited_for_may_be_lost_and_the_gang_is_done() -> None:
    ranks = [rank("worker-0", end=RankEnd(exit_code=0)), rank("worker-1", end=BAD), rank("server-0")]
    verdict = judge(roles("continue"), ranks)
    assert (verdict.drop, verdict.done, verdict.exit_code) == (("worker-1",), True, 0)


def test_continue_with_a_range_keeps_its_minimum() -> None:
    ranks = [rank("worker-0", end=BAD), rank("worker-1"), rank("server-0")]
    assert judge(roles("continue", "2..4"), ranks).failed is Reason.EXIT_CODE


@pytest.mark.parametrize(
    ("on_lost", "count", "lost", "spared"),
    [
        ("continue", 2, {"worker-0"}, True),
        ("continue", 2, {"worker-0", "worker-1"}, False),
        ("continue", "2..4", {"worker-0"}, False),
        ("continue", 2, {"server-0"}, False),
        ("fail", 2, {"worker-0"}, False),
        ("restart", 2, {"worker-0"}, False),
        ("fail", 2, set(), True),
    ],
)
def test_what_a_lost_node_may_take_with_it(on_lost: str, count: object, lost: set[str], spared: bool) -> None:
    ranks = [rank("worker-0"), rank("worker-1"), rank("server-0")]
    assert can_spare(roles(on_lost, count), ranks, lost) is spared


def test_a_rank_that_is_gone_counts_as_finished() -> None:
    assert judge(roles("continue"), [rank("worker-0", "gone"), rank("worker-1", end=OK), rank("server-0")]).done


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (RankEnd(exit_code=1, tail=TRACEBACK + "ValueError: no\n"), Reason.PYTHON_ERROR),
        (RankEnd(exit_code=127, tail="sh: nope: not found"), Reason.COMMAND_MISSING),
        (RankEnd(failed_start=True, message="no such file: nope"), Reason.COMMAND_MISSING),
        (RankEnd(failed_start=True, message="input digits: not found"), Reason.INPUT_MISSING),
        (RankEnd(failed_start=True, message="environment requirements.txt could not …"), Reason.ENVIRONMENT_FAILED),
        (RankEnd(failed_start=True, message="environment x …: No space left on device"), Reason.DISK_FULL),
        (RankEnd(failed_start=True, message="No space left on device"), Reason.DISK_FULL),
        (RankEnd(signal=9, oom=True), Reason.OUT_OF_MEMORY),
        (RankEnd(signal=9), Reason.KILLED),
        (RankEnd(signal=15), Reason.KILLED),
        (RankEnd(signal=11), Reason.CRASHED),
        (RankEnd(signal=6), Reason.CRASHED),
        (RankEnd(exit_code=1, tail=TRACEBACK + "OSError: [Errno 98] Address already in use"), Reason.PORT_CLASH),
        (RankEnd(exit_code=1, tail="OSError: [Errno 28] No space left on device"), Reason.DISK_FULL),
        (RankEnd(exit_code=7), Reason.EXIT_CODE),
    ],
)
def test_how_a_rank_ended_gives_its_reason(end: RankEnd, reason: Reason) -> None:
    found, message = explain(rank("worker-1", end=end))
    assert found is reason and "worker-1" in message


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (RankEnd(exit_code=3), 3),
        (RankEnd(signal=9), 137),
        (RankEnd(failed_start=True, message="no program 'x'"), 127),
        (RankEnd(failed_start=True, message="input x cannot be had"), 1),
        (RankEnd(), 1),
    ],
)
def test_the_exit_code_is_what_a_shell_would_give(end: RankEnd, code: int) -> None:
    assert judge(roles(), [rank("worker-0", end=end), rank("worker-1"), rank("server-0")]).exit_code == code


@pytest.mark.parametrize(
    ("tail", "signal", "well"),
    [
        ("accuracy 0.97\nterminate called without an active exception\n", 6, True),
        ("terminate called without an active exception\nFatal Python error: Aborted\n  <no Python frame>\n", 6, True),
        (
            'terminate called without an active exception\nFatal Python error: Aborted\n  File "a.py"\n',
            6,
            False,
        ),
        ("terminate called without an active exception\n", 11, False),
        ("something else\n", 6, False),
    ],
)
def test_an_abort_after_the_script_had_ended_is_told_from_a_crash(tail: str, signal: int, well: bool) -> None:
    assert aborted_after_end(RankEnd(signal=signal, tail=tail)) is well


def test_of_several_ends_at_once_the_one_that_was_killed_is_to_blame() -> None:
    fell = RankEnd(exit_code=1, tail=TRACEBACK + "XGBoostError: Ring allreduce failed")
    verdict = judge(roles(), [rank("worker-0", end=fell), rank("worker-1", end=RankEnd(signal=9)), rank("server-0")])
    assert (verdict.failed, verdict.blamed) == (Reason.KILLED, ("worker-1",))


# -- what the end of each role means, framework by framework -----------------------------------------------------------

TF_PS = {"framework": "tensorflow", "strategy": "ps-async", "workers": 2, "roles": {"evaluator": {}}}
TF_OLD = {"framework": "tensorflow", "strategy": "ps-sync", "workers": 2}
TF_ALL = {"framework": "tensorflow", "strategy": "allreduce", "workers": 2, "roles": {"chief": {}, "evaluator": {}}}
LOST = RankEnd(signal=9)


@pytest.mark.parametrize(
    ("job", "ended", "means"),
    [
        (TF_PS, {"chief-0": OK}, "done"),
        (TF_PS, {"worker-0": OK, "worker-1": OK, "server-0": OK}, "runs"),
        (TF_PS, {"chief-0": BAD}, "failed"),
        (TF_PS, {"worker-1": LOST}, "restart worker-1"),
        (TF_PS, {"server-0": LOST}, "failed"),
        (TF_PS, {"evaluator-0": LOST}, "drop evaluator-0"),
        (TF_ALL, {"chief-0": OK, "worker-0": OK}, "runs"),
        (TF_ALL, {"chief-0": OK, "worker-0": OK, "worker-1": OK}, "done"),
        (TF_ALL, {"worker-1": LOST}, "failed"),
        (TF_ALL, {"evaluator-0": BAD}, "drop evaluator-0"),
        (TF_OLD, {"worker-1": OK}, "runs"),
        (TF_OLD, {"worker-0": OK}, "done"),
        (TF_OLD, {"worker-1": LOST}, "failed"),
        ({"framework": "xgboost", "workers": 2}, {"worker-0": OK, "worker-1": OK}, "done"),
        ({"framework": "xgboost", "workers": 2}, {"worker-1": LOST}, "failed"),
        ({"framework": "xgboost", "workers": 2}, {"tracker-0": LOST}, "failed"),
        ({"framework": "lightgbm", "workers": 2}, {"worker-1": LOST}, "failed"),
        ({"framework": "mxnet", "workers": 2}, {"worker-0": OK, "worker-1": OK}, "done"),
        ({"framework": "mxnet", "workers": 2}, {"scheduler-0": LOST}, "failed"),
        ({"framework": "mxnet", "workers": 2}, {"server-0": LOST}, "failed"),
        ({"framework": "paddle", "workers": 2}, {"worker-0": LOST}, "failed"),
        ({"framework": "jax", "workers": 2}, {"worker-1": LOST}, "failed"),
        ({"framework": "jax", "workers": 2}, {"worker-0": OK}, "runs"),
        ({"framework": "horovod", "workers": 2}, {"worker-1": LOST}, "failed"),
        ({"strategy": "ps-async", "workers": 2}, {"worker-1": LOST}, "drop worker-1"),
        ({"strategy": "ps-async", "workers": 2}, {"server-0": LOST}, "restart server-0"),
        ({"strategy": "ps-sync", "workers": 2}, {"worker-1": LOST}, "failed"),
        ({"strategy": "gossip", "workers": 2}, {"worker-0": LOST}, "drop worker-0"),
    ],
)
def test_what_an_end_means_for_each_role_of_a_framework(
    job: dict[str, object], ended: dict[str, RankEnd], means: str
) -> None:
    every = parse({"script": "train.py", **job}).expand()
    names = [f"{role.name}-{index}" for role in every for index in range(role.low)]
    assert ended.keys() <= set(names)
    verdict = judge(every, [rank(name, end=ended.get(name)) for name in names])
    changed = [*(f"restart {name}" for name in verdict.restart), *(f"drop {name}" for name in verdict.drop)]
    found = "done" if verdict.done else "failed" if verdict.failed else ", ".join(changed) or "runs"
    assert found == means
