"""Bad input through the real command line: a clear error on stderr, exit code 2, no traceback, nothing started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Shoal


def _file(name: str, content: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_text(content)

    return write


def _folder(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).mkdir()


def _huge(folder: Path) -> None:
    with (folder / "job.yaml").open("w") as file:
        file.write("script: train.py\nname: ")
        file.writelines("x" * (1 << 20) for _ in range(100))


def _nothing(folder: Path) -> None:
    """The fixture's train.py is all that is needed."""


CASES = [
    ("a missing script", _nothing, ["tarin.py"], ["tarin.py", "did you mean train.py"]),
    ("a folder instead of a script", _folder("src"), ["src"], ["src is a folder"]),
    ("no workers", _nothing, ["train.py", "--workers", "0"], ["workers", "1 to 10000"]),
    ("too many workers", _nothing, ["train.py", "--workers", "10001"], ["workers", "to 10000"]),
    ("workers in words", _nothing, ["train.py", "--workers", "two"], ["workers: 'two' is not a count"]),
    ("a negative estimate", _nothing, ["train.py", "--estimate", "-5m"], ["estimate", "'-5m' is negative"]),
    ("a negative limit", _nothing, ["train.py", "--max-duration=-5m"], ["max_duration", "'-5m' is negative"]),
    ("a name with a slash", _nothing, ["train.py", "--name", "a/b"], ["name", "'/'"]),
    ("a name with an emoji", _nothing, ["train.py", "--name", "fish🐟"], ["name", "🐟"]),
    ("a name of 300 characters", _nothing, ["train.py", "--name", "n" * 300], ["name", "300 characters", "1 to 63"]),
    (
        "tabs",
        _file("job.yaml", "script: train.py\nresources:\n\tcpu: 1\n"),
        ["job.yaml"],
        ["job.yaml", "line 3", "tab"],
    ),
    ("a key twice", _file("job.yaml", "workers: 1\nworkers: 2\n"), ["job.yaml"], ["'workers' stands there twice"]),
    ("a scalar of 100 MB", _huge, ["job.yaml"], ["job.yaml", "put data into inputs"]),
    ("a job file that is a folder", _folder("job.yaml"), ["job.yaml"], ["job.yaml is a folder, not a job file"]),
    ("a job file that is missing", _nothing, ["-f", "none.yaml"], ["no job file none.yaml"]),
    ("a job file that is a list", _file("job.yaml", "- a\n"), ["job.yaml"], ["job.yaml", "list", "map"]),
    ("an empty job file", _file("job.yaml", ""), ["job.yaml"], ["job.yaml", "map"]),
    ("an unknown key", _file("job.yaml", "script: train.py\nwrokers: 2\n"), ["job.yaml"], ["did you mean 'workers'"]),
    ("an unknown flag", _nothing, ["train.py", "--wrokers", "2"], ["--wrokers", "did you mean --workers?"]),
    ("a script's flag before the dashes", _nothing, ["train.py", "--epochs", "5"], ["--epochs", "behind '--'"]),
    ("a size that is none", _nothing, ["train.py", "--memory", "lots"], ["resources.memory", "'lots' is not a size"]),
    ("an input that is no address", _nothing, ["train.py", "--input", "a=b"], ["inputs", "pool://me"]),
    ("a variable without a value", _nothing, ["train.py", "--env", "A"], ["--env", "NAME=VALUE"]),
    ("nothing to run", _nothing, [], ["nothing to run"]),
    ("nothing behind the dashes", _nothing, ["--"], ["nothing stands behind '--'"]),
    ("a folder that is missing", _nothing, ["train.py", "--folder", "gone"], ["folder", "gone"]),
]


@pytest.mark.parametrize(
    ("prepare", "arguments", "said"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_job_that_cannot_be_is_refused_before_anything_starts(
    shoal: Shoal, prepare: Callable[[Path], None], arguments: list[str], said: list[str]
) -> None:
    prepare(shoal.folder)
    ran = shoal("run", *arguments)
    assert ran.code == 2, ran.err
    assert ran.err.startswith("error: ") and "Traceback" not in ran.err and ran.out == ""
    assert all(words in ran.err for words in said), ran.err
    assert not (shoal.home / "server.json").exists()


def test_all_faults_of_a_job_are_listed_at_once(shoal: Shoal) -> None:
    ran = shoal("submit", "train.py", "--workers", "two", "--retries", "-1")
    assert ran.code == 2 and "  workers: " in ran.err and "  retries: " in ran.err


@pytest.mark.parametrize("command", ["submit", "plan", "try"])
def test_the_other_commands_that_take_a_job_refuse_it_in_the_same_words(shoal: Shoal, command: str) -> None:
    ran = shoal(command, "train.py", "--workers", "two")
    assert (ran.code, ran.err) == (
        2,
        "error: workers: 'two' is not a count; write a whole number such as 4, or a range such as 2..8\n",
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["jbos"], 2, "did you mean 'jobs'?"),
        (["jobs", "--state", "runing"], 2, "did you mean 'running'?"),
        (["jobs", "--limit", "x"], 2, "--limit"),
        (["logs", "a", "--grep", "("], 2, "--grep"),
        (["logs", "a", "--tail", "-3"], 2, "--tail"),
        (["stop", "a", "--grace", "soon"], 2, "--grace"),
        (["show", "a", "--json", "--yaml"], 2, "contradict"),
        (["jobs"], 1, "shoal server start"),
        (["show", "a"], 1, "shoal server start"),
        (["token", "new", "--expires", "never", "--user", "x"], 2, "--expires"),
    ],
)
def test_other_commands_say_what_is_wrong_too(shoal: Shoal, arguments: list[str], code: int, said: str) -> None:
    ran = shoal(*arguments)
    assert ran.code == code and ran.err.startswith("error: ") and said in ran.err, ran.err


def test_a_traceback_is_shown_only_when_asked_for(shoal: Shoal) -> None:
    ran = shoal("run", "none.py", env={"SHOAL_DEBUG": "1"})
    assert "Traceback" in ran.err and "error: script: there is no none.py" in ran.err


def test_a_password_is_not_awaited_where_nobody_can_type(shoal: Shoal) -> None:
    ran = shoal("token", "new", "--user", "lin", env={"SHOAL_URL": "http://127.0.0.1:1"})
    assert ran.code == 2 and "--password-stdin" in ran.err
