"""The whole command line: its names, what it loads, completion, and errors that are nobody's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shoal.cli import errors
from shoal.cli.app import COMMANDS
from shoal.errors import BadConfig, BadSpec, ShoalError

from .conftest import Shoal

FAULT = "hint: this is a fault in Shoal; SHOAL_DEBUG=1 shows where"
NAMES = {
    *(
        "run",
        "submit",
        "try",
        "plan",
        "jobs",
        "show",
        "logs",
        "why",
        "stacks",
        "stop",
        "rm",
        "clone",
        "compare",
        "diff",
        "get",
        "data",
    ),
    *("frameworks", "nodes", "engine", "env", "user", "token", "alert", "server", "doctor", "bench"),
}


def test_the_names_do_not_change() -> None:
    assert set(COMMANDS) == NAMES


def test_listing_jobs_loads_neither_the_server_nor_the_model_nor_rich(shoal: Shoal) -> None:
    code = (
        "import sys; from shoal.cli.app import run; run(['jobs']);"
        "print(*[m for m in ('rich', 'fastapi', 'sqlalchemy', 'torch', 'yaml', 'shoal.job', 'shoal.server')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=shoal.environment(None), capture_output=True, text=True)
    assert done.stdout.strip() == "", done.stdout + done.stderr


def test_shoal_alone_shows_what_there_is(shoal: Shoal) -> None:
    ran = shoal()
    assert ran.code == 0 and all(name in ran.out for name in COMMANDS)


def test_the_version_is_told(shoal: Shoal) -> None:
    ran = shoal("--version")
    assert ran.code == 0 and ran.out.startswith("shoal 0.")


@pytest.mark.parametrize(("words", "expected"), [("shoal jo", "jobs"), ("shoal run --work", "--workers")])
def test_the_shell_completes_commands_and_flags(shoal: Shoal, words: str, expected: str) -> None:
    line = {"_SHOAL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    ran = shoal(env=line)
    assert expected in ran.out.split(), ran.out + ran.err


def test_an_error_of_several_faults_takes_a_line_for_each(capsys: pytest.CaptureFixture[str]) -> None:
    faults = [{"field": "workers", "message": "too few"}, {"field": "", "message": "nothing to run"}]
    assert errors.report(BadSpec("both", faults)) == 2
    assert capsys.readouterr().err.splitlines()[1:] == ["  workers: too few", "  nothing to run"]


@pytest.mark.parametrize(
    ("wrong", "code", "said"),
    [
        (ShoalError("it broke"), 1, "error: it broke\n"),
        (BadConfig("port: no"), 2, "error: port: no\n"),
        (PermissionError(13, "Permission denied", "/root/x"), 1, "error: Permission denied: /root/x\n"),
        (
            ZeroDivisionError("x"),
            1,
            "error: ZeroDivisionError: x\nhint: this is a fault in Shoal; SHOAL_DEBUG=1 shows where\n",
        ),
    ],
)
def test_whatever_goes_wrong_is_a_message(
    wrong: Exception, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert errors.report(wrong) == code
    assert capsys.readouterr().err == said
