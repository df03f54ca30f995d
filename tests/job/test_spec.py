"""The job file: what parses, what is refused, and that refusals say what to do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import BadSpec
from shoal.job.file import read_yaml
from shoal.job.spec import JobSpec, parse

DESIGN_FILE = """
name: digits
framework: pytorch
script: train.py
args: [--epochs, "5"]
strategy: ps-ssp:staleness=3
workers: 4
servers: 2
resources: {cpu: 1, memory: 2GiB, gpu: 0}
environment: pytorch-2.13
inputs: {digits: dataset://digits@v1}
outputs: pool://team/models
estimate: 20m
on_overrun: alert
max_duration: 2h
retries: 2
priority: normal
"""


def test_the_whole_job_file_of_the_design_parses() -> None:
    spec = parse(read_yaml(DESIGN_FILE))
    assert (spec.estimate, spec.max_duration, spec.resources.memory) == (1200.0, 7200.0, 2 << 30)
    assert [(role.name, role.low) for role in spec.expand()] == [("worker", 4), ("server", 2)]


def test_a_specification_survives_its_own_json() -> None:
    spec = parse(read_yaml(DESIGN_FILE))
    assert parse(json.loads(spec.model_dump_json())) == spec
    assert parse(json.loads(spec.model_dump_json(exclude_defaults=True))) == spec


def test_workers_default_to_one() -> None:
    assert [(r.name, r.low, r.high) for r in parse({"script": "a.py"}).expand()] == [("worker", 1, 1)]


def test_a_range_of_workers_is_kept_as_a_range() -> None:
    spec = parse({"script": "a.py", "workers": "2..8"})
    assert [(r.low, r.high) for r in spec.expand()] == [(2, 8)]
    assert json.loads(spec.model_dump_json())["workers"] == "2..8"


def test_a_role_takes_what_it_leaves_out_from_the_job() -> None:
    spec = parse(
        {
            "command": ["x"],
            "env": {"A": "1"},
            "resources": {"cpu": 2},
            "roles": {"worker": {"count": 2}, "evaluator": {"count": 1, "resources": {"cpu": 0.5}, "env": {"B": "2"}}},
        }
    )
    worker, evaluator = spec.expand()
    assert (worker.resources.cpu, evaluator.resources.cpu) == (2, 0.5)
    assert (worker.env, evaluator.env) == ({"A": "1"}, {"A": "1", "B": "2"})


@pytest.mark.parametrize(
    ("raw", "field", "says"),
    [
        ({"workers": 0}, "workers", "1 to 10000"),
        ({"workers": 10_001}, "workers", "1 to 10000"),
        ({"workers": "two"}, "workers", "whole number"),
        ({"workers": True}, "workers", "not a count"),
        ({"workers": "8..2"}, "workers", "ends before it begins"),
        ({"estimate": "-5m"}, "estimate", "negative"),
        ({"max_duration": "soon"}, "max_duration", "not a duration"),
        ({"estimate": 0.1}, "estimate", "1s"),
        ({"name": "a/b"}, "name", "'/'"),
        ({"name": "🐟"}, "name", "not allowed"),
        ({"name": "n" * 300}, "name", "300 characters"),
        ({"name": ""}, "name", "0 characters"),
        ({"wrkers": 2}, "wrkers", "did you mean 'workers'"),
        ({"resources": {"cpuu": 1}}, "resources.cpuu", "did you mean 'cpu'"),
        ({"roles": {"worker": {"cout": 1}}}, "roles.worker.cout", "did you mean 'count'"),
        ({"resources": {"cpu": 0}}, "resources.cpu", "0.01"),
        ({"resources": {"cpu": "0.001"}}, "resources.cpu", "not a number"),
        ({"resources": {"cpu": float("nan")}}, "resources.cpu", "0.01"),
        ({"resources": {"memory": "12 parsecs"}}, "resources.memory", "not a size"),
        ({"resources": {"gpu": 65}}, "resources.gpu", "0 to 64"),
        ({"framework": "pytoch"}, "framework", "pytorch"),
        ({"priority": "very"}, "priority", "normal"),
        ({"args": ["x" * 40_000]}, "args", "32768"),
        ({"args": ["a"] * 1001}, "args", "1001"),
        ({"args": "--epochs 5"}, "args", "not a list"),
        ({"args": [True]}, "args", "quotes"),
        ({"env": {"A-B": "x"}}, "env", "variable name"),
        ({"env": {"SHOAL_RANK": "0"}}, "env", "Shoal's own"),
        ({"inputs": {"d": "/etc"}}, "inputs", "pool://"),
        ({"inputs": {"d": "pool://me/../other"}}, "inputs", "'..'"),
        ({"retries": 101}, "retries", "0 to 100"),
        ({"key": ""}, "key", "1 character"),
    ],
)
def test_a_wrong_value_is_refused_with_the_field_and_what_is_allowed(
    raw: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(BadSpec) as refused:
        parse({"script": "train.py", **raw})
    assert refused.value.problems[0]["field"] == field
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({}, "nothing to run"),
        ({"script": "a.py", "command": ["b"]}, "contradict"),
        ({"command": ["b"], "args": ["c"]}, "args belong to a script"),
        ({"script": "a.py", "workers": 2, "roles": {"worker": {"count": 1}}}, "contradict"),
        ({"script": "a.py", "size": "small", "resources": {"cpu": 1}}, "contradict"),
        ({"script": "a.py", "estimate": "2h", "max_duration": "1h"}, "longer than max_duration"),
        ([], "a map of keys"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(raw: Any, says: str) -> None:
    with pytest.raises(BadSpec, match=says):
        parse(raw)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(BadSpec) as refused:
        parse({"script": "a.py", "workers": 0, "name": "a b", "estimate": "-1m"})
    assert {problem["field"] for problem in refused.value.problems} == {"workers", "name", "estimate"}


def test_every_bound_is_in_the_schema_with_its_reason() -> None:
    properties = JobSpec.model_json_schema()["properties"]
    for key in ("workers", "retries", "log_limit", "grace", "estimate"):
        shown = json.dumps(properties[key])
        assert '"bounds"' in shown and '"why"' in shown, key


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\n\tb: 2\n", "tab"),
        ("a: 1\na: 2\n", "twice"),
        ("x: " + "y" * (100 << 20), "at most"),
        ("a: [1, 2\n", "line"),
        ("a: !!python/object/apply:os.system [id]\n", "line 1"),
        ("? [1, 2]\n: x\n", "a key must be a word"),
    ],
    ids=["tab", "duplicate", "huge", "open-list", "object", "list-key"],
)
def test_yaml_traps_are_refused_with_their_place(text: str, says: str) -> None:
    with pytest.raises(BadSpec, match=says):
        read_yaml(text)


@given(
    st.dictionaries(
        st.sampled_from([*JobSpec.model_fields, "surprise"]),
        st.none()
        | st.integers()
        | st.text()
        | st.lists(st.text())
        | st.booleans()
        | st.dictionaries(st.text(), st.integers()),
        max_size=6,
    )
)
def test_whatever_comes_in_is_a_job_or_a_bad_spec(raw: dict[str, Any]) -> None:
    try:
        spec = parse(raw)
    except BadSpec as refused:
        assert refused.message
    else:
        assert parse(json.loads(spec.model_dump_json())) == spec


def test_a_bound_names_the_value_it_refuses() -> None:
    with pytest.raises(BadSpec, match="workers: must be 1 to 10000, not 10001: "):
        parse({"script": "a.py", "workers": 10_001})
    with pytest.raises(BadSpec, match="estimate: must be 1s to 366d, not 400d: "):
        parse({"script": "a.py", "estimate": "400d"})


def test_a_word_is_not_a_truth() -> None:
    with pytest.raises(BadSpec, match=r"roles\.worker\.apart"):
        parse({"script": "a.py", "roles": {"worker": {"apart": "yes"}}})


def test_a_script_is_run_by_a_worker_unless_another_role_runs_it() -> None:
    def names(roles: dict[str, Any]) -> list[str]:
        return [role.name for role in parse({"script": "a.py", "roles": roles}).expand()]

    assert names({"evaluator": {"command": ["watch"]}}) == ["evaluator", "worker"]
    assert names({"server": {"count": 2}}) == ["server", "worker"]
    assert names({"chief": {}}) == ["chief"]


@pytest.mark.parametrize("count", [0, "0..4"])
def test_a_job_without_a_process_is_refused(count: object) -> None:
    with pytest.raises(BadSpec, match="roles start no process"):
        parse({"script": "a.py", "roles": {"worker": {"count": count}}})


@pytest.mark.parametrize("resources", [{"gpu_type": "a100"}, {"cpu_quota": True}])
def test_a_request_that_says_nothing_by_itself_is_refused(resources: dict[str, Any]) -> None:
    with pytest.raises(BadSpec, match="as well"):
        parse({"script": "a.py", "resources": resources})
