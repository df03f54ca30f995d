"""Plain lines off a terminal, and cells that cannot break out of them."""

from __future__ import annotations

import pytest

from shoal.cli.output import advice, age, duration_of, percent, print_facts, print_table, printable
from shoal.cli.progress import progress_text


def test_a_table_off_a_terminal_is_aligned_lines_under_a_header(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("id", "state"), [("7f3k", "running"), ("9", None)])
    assert capsys.readouterr().out.splitlines() == ["ID    STATE", "7f3k  running", "9     -"]


def test_an_empty_table_says_so_on_stderr_and_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("id",), [], empty="no jobs")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "no jobs\n")


def test_control_characters_of_a_message_do_not_reach_the_terminal() -> None:
    assert printable("a\x1b[2Jb\nc") == "a [2Jb c"


def test_facts_that_are_not_known_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts([("id", "7"), ("strategy", None), ("exit code", 0)])
    assert capsys.readouterr().out.splitlines() == ["id         7", "exit code  0"]


def test_times_read_at_a_glance() -> None:
    assert age(100.0, now=190.0) == "1m30s"
    assert duration_of({"started_at": 10.0, "ended_at": None}, now=70.0) == "1m"
    assert duration_of({"started_at": None}) == ""
    assert percent(0.425) == "42%"


def test_progress_shows_the_fraction_and_the_numbers() -> None:
    said = {"done": 3, "total": 10, "fraction": 0.3, "loss": 0.123456, "epoch": 2, "grad": "nan"}
    assert progress_text(said) == "30% loss=0.1235 epoch=2 grad=nan"
    assert progress_text({}) == progress_text(None) == ""


def test_advice_names_the_job_and_the_rank_to_look_at() -> None:
    job = {"id": "abc1", "advice": "Read it with 'shoal logs JOB --rank RANK --tail 50'."}
    assert advice({**job, "message": "worker-1 on local exited with 7"}) == (
        "Read it with 'shoal logs abc1 --rank worker-1 --tail 50'."
    )
    assert advice(job) == "Read it with 'shoal logs abc1 --tail 50'."
