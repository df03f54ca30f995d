"""Flags to the job file's data: every key has one, and a flag says the same as the key."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.cli.flags import FLAGS, override
from shoal.errors import BadSpec
from shoal.job.fields import Resources
from shoal.job.spec import JobSpec, parse


def test_every_key_of_the_job_file_has_a_flag() -> None:
    served = {flag.key.partition(".")[0] for flag in FLAGS}
    assert served == set(JobSpec.model_fields)


def test_every_resource_has_a_flag() -> None:
    served = {flag.key.partition(".")[2] for flag in FLAGS if flag.key.startswith("resources.")}
    assert served == set(Resources.model_fields)


def test_no_two_flags_share_a_name() -> None:
    names = [part for flag in FLAGS for name in flag.names for part in name.split("/")]
    assert len(names) == len(set(names))


def test_every_flag_has_a_help_text_from_the_model() -> None:
    assert all(len(flag.help) > 10 for flag in FLAGS)


SCRIPT = {"script": "train.py"}


@pytest.mark.parametrize(
    ("flags", "same"),
    [
        ({"workers": "4"}, {"workers": 4}),
        ({"workers": "2..8"}, {"workers": "2..8"}),
        ({"resources.cpu": "0.5", "resources.gpu": "2"}, {"resources": {"cpu": 0.5, "gpu": 2}}),
        ({"resources.memory": "2GiB"}, {"resources": {"memory": 2 << 30}}),
        ({"retries": "0"}, {"retries": 0}),
        ({"estimate": "20m"}, {"estimate": 1200}),
        ({"env": ["A=1", "B=x=y"]}, {"env": {"A": "1", "B": "x=y"}}),
        ({"inputs": ["d=pool://me/d"]}, {"inputs": {"d": "pool://me/d"}}),
        ({"tags": ["a", "b"]}, {"tags": ["a", "b"]}),
        ({"labels": ["zone=b"]}, {"labels": {"zone": "b"}}),
        ({"label": ["zone=b"]}, {"labels": {"zone": "b"}}),
        ({"args": "--epochs 5 --name 'a b'"}, {"args": ["--epochs", "5", "--name", "a b"]}),
        ({"in_place": True}, {"in_place": True}),
        (
            {"roles": ["evaluator:count=1,cpu=2,on_lost=continue,env.A=b,apart=true"]},
            {
                "roles": {
                    "evaluator": {
                        "count": 1,
                        "resources": {"cpu": 2},
                        "on_lost": "continue",
                        "env": {"A": "b"},
                        "apart": True,
                    }
                }
            },
        ),
    ],
)
def test_a_flag_means_what_the_key_means(flags: dict[str, Any], same: dict[str, Any]) -> None:
    assert parse(override(SCRIPT, flags)) == parse({**SCRIPT, **same})


def test_flags_override_the_file_and_add_to_its_maps() -> None:
    file = {**SCRIPT, "workers": 2, "env": {"A": "1"}, "tags": ["old"], "resources": {"cpu": 1, "memory": "1GiB"}}
    raw = override(file, {"workers": "4", "env": ["B=2"], "tags": ["new"], "resources.cpu": "2"})
    assert raw == {
        **SCRIPT,
        "workers": "4",
        "env": {"A": "1", "B": "2"},
        "tags": ["old", "new"],
        "resources": {"cpu": 2, "memory": "1GiB"},
    }


def test_a_size_flag_replaces_the_resources_of_the_file_and_the_other_way_round() -> None:
    assert "resources" not in override({**SCRIPT, "resources": {"cpu": 1}}, {"size": "small"})
    assert "size" not in override({**SCRIPT, "size": "small"}, {"resources.cpu": "1"})


def test_workers_flag_reaches_a_role_of_the_long_form() -> None:
    raw = override({**SCRIPT, "roles": {"worker": {"count": 2, "apart": True}}}, {"workers": "5"})
    assert raw["roles"]["worker"] == {"count": "5", "apart": True} and "workers" not in raw


def test_a_script_flag_replaces_the_command_of_the_file() -> None:
    assert override({"command": ["ls"]}, {"script": "a.py"}) == {"script": "a.py"}
    assert override({"script": "a.py", "args": ["-x"]}, {"command": "ls -l"}) == {"command": ["ls", "-l"]}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"env": ["A"]}, "--env: 'A' has no '='"),
        ({"roles": ["worker:count"]}, "--role: 'count'"),
    ],
)
def test_a_pair_without_an_equals_sign_is_refused_by_name(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(BadSpec, match=said):
        override(SCRIPT, flags)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"workers": "two"}, "'two' is not a count"),
        ({"resources.gpu": "two"}, "resources.gpu"),
        ({"resources.cpu": "0.001"}, "0.01"),
        ({"retries": "many"}, "retries"),
        ({"roles": ["worker:cuont=2"]}, "did you mean 'count'"),
        ({"roles": ["worker:apart=perhaps"]}, "apart"),
    ],
)
def test_a_wrong_value_gets_the_models_own_message(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(BadSpec) as caught:
        parse(override(SCRIPT, flags))
    assert said in caught.value.message


ROWS = {"framework": "xgboost", "data": "rows.csv"}


@pytest.mark.parametrize(
    ("flags", "same"),
    [
        ({"label": ["y"]}, {"label": "y"}),
        ({"label": ["0", "zone=b"]}, {"label": 0, "labels": {"zone": "b"}}),
        ({"valid": "0.2"}, {"valid": 0.2}),
        ({"valid": "test.csv"}, {"valid": "test.csv"}),
        (
            {"params": ["max_depth=4,eta=0.1", "objective=reg:squarederror,header=false"]},
            {"params": {"max_depth": 4, "eta": 0.1, "objective": "reg:squarederror", "header": False}},
        ),
        (
            {"params": ["ignore=[id,'a name'],monotone_constraints=(1,-1),rounds=5"]},
            {"params": {"ignore": ["id", "a name"], "monotone_constraints": "(1,-1)", "rounds": 5}},
        ),
    ],
)
def test_training_without_a_script_is_said_in_flags_too(flags: dict[str, Any], same: dict[str, Any]) -> None:
    assert parse(override(ROWS, flags)) == parse({**ROWS, **same})


@pytest.mark.parametrize(
    ("flags", "says"),
    [({"label": ["a", "b"]}, "two columns, a and b"), ({"params": ["max_depth"]}, "'max_depth' has no '='")],
)
def test_flags_of_training_without_a_script_that_cannot_be(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(BadSpec, match=says):
        override(ROWS, flags)
