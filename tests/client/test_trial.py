from __future__ import annotations

from typing import Any

import pytest

from shoal.client.http import Api
from shoal.client.jobs import Job
from shoal.client.trial import Machine, good, trial, try_job
from shoal.job.spec import parse
from tests.client.fake import Answer, FakeServer

LAPTOP = Machine(cpus=2, memory=8 << 30, gpus=0)


def counts(raw: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {role.name: (role.low, role.high) for role in trial(parse(raw), LAPTOP).expand()}


def test_every_role_has_one_process() -> None:
    assert counts({"script": "t.py", "workers": 64, "servers": 8}) == {"worker": (1, 1), "server": (1, 1)}
    assert counts({"script": "t.py", "workers": "2..8"}) == {"worker": (1, 1)}
    assert counts({"script": "t.py"}) == {"worker": (1, 1)}
    assert counts({"script": "t.py", "servers": 0}) == {"worker": (1, 1)}
    roles = {"worker": {"count": 4}, "evaluator": {"count": 3, "apart": True}, "chief": {"count": 0}}
    assert counts({"script": "t.py", "roles": roles}) == {"worker": (1, 1), "evaluator": (1, 1)}


def test_a_trial_is_short_and_tried_once() -> None:
    spec = trial(
        parse({"command": ["true"], "max_duration": "2h", "estimate": "20m", "retries": 5, "tags": ["a"]}), LAPTOP
    )
    assert (spec.max_duration, spec.estimate, spec.retries, spec.tags) == (60.0, None, 0, ("a", "try"))
    assert trial(parse({"command": ["true"], "max_duration": "10s", "estimate": "5s"}), LAPTOP).max_duration == 10.0


def test_what_this_machine_lacks_is_not_asked_for() -> None:
    asked = {"script": "t.py", "workers": 4, "resources": {"cpu": 16, "memory": "512GiB", "gpu": 8, "gpu_type": "h200"}}
    resources = trial(parse(asked), LAPTOP).resources
    assert (resources.cpu, resources.memory, resources.gpu, resources.gpu_type) == (None, None, 0, None)


def test_what_this_machine_has_is_asked_for() -> None:
    asked = {"script": "t.py", "workers": 4, "servers": 2, "resources": {"cpu": 1, "memory": "2GiB"}}
    resources = trial(parse(asked), LAPTOP).resources
    assert (resources.cpu, resources.memory) == (1, 2 << 30)


def test_roles_that_only_fit_alone_are_not_held_to_their_requests() -> None:
    asked = {"command": ["true"], "roles": {"worker": {"resources": {"cpu": 2}}, "chief": {"resources": {"cpu": 1}}}}
    assert all(role.resources.cpu is None for role in trial(parse(asked), LAPTOP).expand())


def test_names_that_only_the_real_server_knows_are_left_out() -> None:
    spec = trial(
        parse({"command": ["true"], "size": "large", "engine": "slurm", "labels": {"zone": "a"}, "key": "k"}), LAPTOP
    )
    assert (spec.size, spec.engine, spec.labels, spec.key) == (None, None, {}, None)


def test_everything_else_stays_as_it_is() -> None:
    asked = {
        "script": "t.py",
        "args": ["--x"],
        "env": {"A": "1"},
        "strategy": "ps-async",
        "inputs": {"d": "pool://me/d"},
    }
    before, after = parse(asked), trial(parse(asked), LAPTOP)
    for key in asked:
        assert getattr(after, key) == getattr(before, key)


def test_a_trial_can_be_read_by_a_server() -> None:
    spec = trial(parse({"script": "t.py", "workers": 8, "size": "large", "estimate": "2h"}), LAPTOP)
    assert parse(spec.model_dump(mode="json", exclude_unset=True)) == spec


@pytest.mark.parametrize(
    ("state", "reason", "fine"),
    [
        ("succeeded", "completed", True),
        ("stopped", "max_duration", True),
        ("stopped", "user_stop", False),
        ("failed", "exit_code", False),
        ("running", "running", False),
    ],
)
def test_a_minute_without_a_failure_is_good(api: Api, state: str, reason: str, fine: bool) -> None:
    assert good(Job(api, {"id": "x", "state": state, "reason": reason})) is fine


def test_the_machine_is_the_largest_node() -> None:
    nodes = [{"cpus": 2, "memory": 5, "gpus": []}, {"cpus": 8, "memory": 9, "gpus": [{"index": 0}]}]
    assert Machine.of(nodes) == Machine(8, 9, 1)


def test_a_trial_is_submitted_as_such(server: FakeServer, api: Api) -> None:
    server.on("GET", "/nodes", {"nodes": [{"cpus": 2, "memory": 8 << 30, "gpus": []}]})
    server.on("POST", "/jobs", lambda _: Answer({"id": "abc", "state": "queued"}, 201))
    assert try_job({"command": ["true"]}, api=api, workers=9).id == "abc"
    spec = server.asked[-1].json()["spec"]
    assert (spec["workers"], spec["tags"], spec["retries"]) == (1, ["try"], 0)
