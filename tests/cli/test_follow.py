"""What a followed job ends with: exit codes, the last line, and lines with their rank."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.cli.follow import exit_code, summary
from shoal.cli.live import LiveView
from shoal.cli.logs import Line
from shoal.client.lines import LogLine


def ended(state: str, **more: Any) -> dict[str, Any]:
    return {"id": "7f3k", "name": "digits", "state": state, "started_at": 100.0, "ended_at": 112.0, **more}


@pytest.mark.parametrize(
    ("job", "code"),
    [
        (ended("succeeded", reason="completed", exit_code=0), 0),
        (ended("failed", reason="exit_code", exit_code=7), 7),
        (ended("failed", reason="killed", exit_code=137), 137),
        (ended("failed", reason="shepherd_lost", exit_code=None), 1),
        (ended("stopped", reason="user_stop", exit_code=None), 130),
        (ended("stopped", reason="max_duration", exit_code=143), 124),
    ],
)
def test_the_exit_code_tells_how_the_job_ended(job: dict[str, Any], code: int) -> None:
    assert exit_code(job) == code


def test_the_last_line_of_a_success_is_short() -> None:
    assert summary(ended("succeeded", reason="completed", advice="Fetch it.")) == "7f3k digits succeeded after 12s"


def test_the_last_line_of_a_failure_says_why_and_what_to_do_on_one_line() -> None:
    job = ended("failed", reason="exit_code", message="worker-1 exited with 3:\nbad", advice="Read the log.")
    assert summary(job) == "7f3k digits failed after 12s (exit_code: worker-1 exited with 3: bad). Read the log."


def test_a_plain_line_is_prefixed_with_its_rank() -> None:
    assert Line().text(LogLine("worker-0", 0.0, "[rank 1] loss")) == "worker-0 | [rank 1] loss"


def test_prefixes_of_ranks_with_names_of_different_length_are_aligned() -> None:
    line = Line()
    line.text(LogLine("evaluator-10", 0.0, "x"))
    assert line.text(LogLine("worker-0", 0.0, "y")) == "worker-0     | y"


def test_a_rank_keeps_its_colour() -> None:
    line = Line(colour=True)
    first, second = line.text(LogLine("worker-0", 0.0, "a")), line.text(LogLine("worker-0", 0.0, "a"))
    assert first == second and first.startswith("\x1b[")


def shown(view: LiveView) -> str:
    with view._console.capture() as capture:
        view._console.print(view.render())
    return capture.get()


def test_the_live_view_has_one_line_per_rank_with_progress_and_last_words() -> None:
    ranks = [{"name": "worker-0", "state": "running", "progress": {"fraction": 0.42, "loss": 0.25}}]
    view = LiveView(ended("running", ranks=ranks))
    view.write([LogLine("worker-0", 0.0, "[rank 1] epoch 3")])
    text = shown(view)
    assert all(word in text for word in ("running", "worker-0", "42%", "loss=0.25", "[rank 1] epoch 3"))


def test_the_live_view_keeps_to_a_dozen_ranks() -> None:
    ranks = [{"name": f"worker-{i}", "state": "running", "progress": {}} for i in range(40)]
    assert "… and 28 more ranks" in shown(LiveView(ended("running", ranks=ranks)))


def test_log_lines_above_the_live_view_are_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    LiveView(ended("running")).write([LogLine("worker-0", 0.0, "[bold]x[/bold] [rank 1]")])
    assert "[bold]x[/bold] [rank 1]" in capsys.readouterr().out
