"""What differs between two jobs, from their descriptions alone; and how it is shown."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from shoal.cli.diff import changes_between, differences, flat
from shoal.cli.record import git_line, print_lines, print_record, short_facts

JOB: dict[str, Any] = {
    "id": "a1",
    "spec": {"script": "train.py", "workers": 2, "env": {"LR": "0.1"}, "key": "k"},
    "manifest": "m1",
    "origin": {
        "host": "laptop",
        "user": "ann",
        "python": "3.11.2",
        "shoal": "0.1.0",
        "command": ["shoal", "run", "train.py"],
        "git": {
            "commit": "1234567890abcdef",
            "branch": "main",
            "dirty": True,
            "remote": "https://h/r",
            "diff_digest": "d",
        },
    },
    "attempts": [
        {"record": None},
        {
            "record": {
                "nodes": {"n1": {"host": "big", "cpu": "EPYC", "cpus": 8, "memory": 1 << 30}},
                "interpreter": {"path": "/v/python", "version": "3.11.2"},
                "packages": {"torch": "2.13.0", "numpy": "2.0", "six": "1.16"},
                "sources": {"six": "file:///six"},
                "frameworks": {"torch": "2.13.0", "numpy": "2.0"},
                "inputs": {"data": {"digest": "a" * 64, "files": 3, "bytes": 2048, "address": "pool://me/d"}},
                "commands": {"worker": ["/v/python", "train.py"]},
                "environment": {"worker": ["LR", "RANK"]},
                "note": None,
            }
        },
    ],
}


def other(**changes: Any) -> dict[str, Any]:
    """The same job with values at dotted places changed."""
    job = copy.deepcopy(JOB)
    for place, value in changes.items():
        *way, last = place.split("__")
        at = {"record": job["attempts"][-1]["record"]}.get(way[0]) if way and way[0] == "record" else job
        for part in way[1:] if way and way[0] == "record" else way:
            at = at[part]
        at[last] = value
    return job


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({}, []),
        ({"spec__key": "other"}, []),
        ({"origin__command": ["shoal", "submit"]}, []),
        ({"spec__workers": 4}, ["workers"]),
        ({"spec__env": {"LR": "0.2"}}, ["env.LR"]),
        ({"record__packages": {"torch": "2.13.0", "numpy": "2.0", "six": "1.17"}}, ["packages.six"]),
        ({"record__packages": {"torch": "2.13.0", "numpy": "2.0"}}, ["packages.six"]),
        (
            {
                "record__packages": {"torch": "2.13.0", "numpy": "2.1", "six": "1.16"},
                "record__frameworks": {"torch": "2.13.0", "numpy": "2.1"},
            },
            ["frameworks.numpy"],
        ),
        ({"record__inputs": {"data": {"digest": "b" * 64}}}, ["inputs.data"]),
        ({"record__nodes": {"other": {"host": "big", "cpu": "EPYC", "cpus": 8, "memory": 1 << 30}}}, []),
        ({"record__nodes": {"n1": {"host": "small", "cpu": "EPYC", "cpus": 8, "memory": 1 << 30}}}, ["machine.host"]),
        ({"record__interpreter": {"path": "/v/python", "version": "3.12.1"}}, ["python.version"]),
        ({"origin__git": {**JOB["origin"]["git"], "commit": "ff", "dirty": False}}, ["git.commit", "git.dirty"]),
        ({"origin__git": {**JOB["origin"]["git"], "diff_digest": "e"}}, []),
        ({"origin__git": {**JOB["origin"]["git"], "diff_digest": "e"}, "manifest": None}, ["git.diff_digest"]),
        ({"origin__host": "desk"}, ["sent.host"]),
        ({"record__commands": {"worker": ["wrapped"]}}, ["command.worker"]),
        ({"record__commands": {"worker": ["wrapped"]}, "spec__workers": 3}, ["workers"]),
        ({"origin": None}, []),
        ({"attempts": []}, []),
        ({"record__packages": {}, "record__interpreter": None}, []),
    ],
)
def test_what_changed_and_nothing_else_is_a_difference(changes: dict[str, Any], keys: list[str]) -> None:
    assert [key for key, _, _ in changes_between(JOB, other(**changes))] == keys


def test_keys_of_maps_are_written_with_dots() -> None:
    assert flat({"a": {"b": 1, "c": {"d": 2}}, "e": None, "f": []}) == {"a.b": 1, "a.c.d": 2}
    assert differences({"a": 1}, {"b": 2}) == [("a", 1, None), ("b", None, 2)]


def test_a_job_shows_in_short_what_it_was() -> None:
    facts = dict(short_facts(JOB))
    assert facts == {
        "git": "1234567890* main https://h/r",
        "sent from": "ann@laptop",
        "ran on": "n1 (big)",
        "python": "3.11.2 /v/python, 3 packages",
        "frameworks": "torch 2.13.0, numpy 2.0",
        "inputs": "data aaaaaaaaaaaa (3 files, 2.0 KiB)",
    }


def test_a_job_of_which_nothing_is_known_shows_nothing() -> None:
    assert not any(value for _, value in short_facts({"id": "a", "attempts": []}))


def test_what_git_could_not_say_is_shown() -> None:
    assert git_line(
        {"commit": None, "dirty": True, "note": "the repository has no commit yet", "untracked": ["a"]}
    ) == ("no commit*, 1 untracked, the repository has no commit yet")


def test_the_whole_record_is_printed_with_its_diff_last(capsys: pytest.CaptureFixture[str]) -> None:
    print_record(JOB, "-x = 1\n+x = 2\n")
    out = capsys.readouterr().out
    for words in ("1234567890abcdef", "shoal run train.py", "EPYC", "1.0 GiB", "a" * 64, "LR RANK", "file:///six"):
        assert words in out
    assert out.splitlines()[-2:] == ["-x = 1", "+x = 2"]


def test_a_diff_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_lines("+\tx = '\x1b[2J'\n")
    assert capsys.readouterr().out == "+\tx = ' [2J'\n"
