"""The record of an attempt, put together from what its nodes said."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.errors import BadRequest
from shoal.job.record import NodeRecord, frameworks, put_together


def node(host: str, **more: Any) -> dict[str, Any]:
    return {"host": {"host": host, "cpus": 2}, **more}


def command(role: str, *argv: str) -> dict[str, Any]:
    return {"role": role, "argv": list(argv), "env": ["A", "B"]}


def test_before_anybody_said_a_word_there_is_no_record() -> None:
    assert put_together({}, {}) is None


def test_the_node_of_the_first_worker_speaks_for_all_and_others_only_where_they_differ() -> None:
    said = {
        "n1": node("h1", packages={"torch": "2.1", "only-here": "1"}, commands={"worker-1": command("worker", "b")}),
        "n2": node(
            "h2",
            packages={"torch": "2.2", "numpy": "2.0"},
            interpreter={"path": "/p", "version": "3.11.2"},
            commands={"worker-0": command("worker", "a")},
        ),
        "n3": node("h3", packages={"torch": "2.2", "numpy": "2.0"}, interpreter={"path": "/p", "version": "3.11.2"}),
    }
    record = put_together(said, {})
    assert record is not None
    assert record["packages"] == {"torch": "2.2", "numpy": "2.0"} and record["commands"] == {"worker": ["a"]}
    assert record["interpreter"] == {"path": "/p", "version": "3.11.2"}
    assert record["nodes"]["n1"]["packages"] == {"torch": "2.1", "only-here": "1", "numpy": None}
    assert record["nodes"]["n3"] == {"host": "h3", "cpus": 2}


def test_each_role_has_the_command_of_its_first_rank() -> None:
    commands = {"server-0": command("server", "ps"), "worker-10": command("worker", "ten")}
    record = put_together(
        {"n1": node("h", commands=commands), "n2": node("h", commands={"worker-2": command("worker", "two")})}, {}
    )
    assert record is not None
    assert record["commands"] == {"server": ["ps"], "worker": ["two"]}
    assert record["environment"] == {"server": ["A", "B"], "worker": ["A", "B"]}


def test_frameworks_go_by_the_names_people_know() -> None:
    packages = {"tensorflow-cpu": "2.21.0", "paddlepaddle": "3.3", "six": "1.16", "nvidia-cuda-runtime-cu12": "12.8.90"}
    assert frameworks(packages) == {"tensorflow": "2.21.0", "paddle": "3.3", "cuda": "12.8.90"}
    assert frameworks({"torch": "2.13.0"}, "13.0") == {"torch": "2.13.0", "cuda": "13.0"}


def test_what_a_newer_shepherd_says_besides_is_left_out() -> None:
    assert NodeRecord.read({"host": {"host": "h", "colour": "red"}, "mood": 1}).to_dict() == {"host": {"host": "h"}}


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        {"packages": {"a": 1}},
        {"packages": {"a": "1" * 2000}},
        {"host": "h"},
        {"commands": {"worker-0": {"argv": "python"}}},
        {"packages": {str(n): "1" for n in range(30_000)}},
    ],
)
def test_nonsense_is_refused_with_its_place(raw: Any) -> None:
    with pytest.raises(BadRequest, match="the record's"):
        NodeRecord.read(raw)
