"""A job whose environment must be built first, on a real server: what is seen meanwhile, and every way it fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.client import environments
from shoal.client.jobs import Job, submit
from shoal.errors import Conflict, NotFound
from tests.support.disk import small_disk
from tests.support.live import Live, eventually, live_server, processes_of
from tests.support.wheels import sdist, wheel

pytestmark = pytest.mark.real

TRAIN = "import tiny, time, sys\nprint('tiny', tiny.VERSION)\ntime.sleep(float(sys.argv[1]))\n"
SLOW = "import time\ndef build_wheel(*a, **k):\n    time.sleep(600)\n"


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with live_server(tmp_path / "home", "--nodes", "2") as server:
        yield server


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    wheel(folder / "wheels", "tiny")
    (folder / "train.py").write_text(TRAIN)
    (folder / "requirements.txt").write_text("--no-index\n--find-links wheels\ntiny==1.0\n")
    return folder


def send(live: Live, code: Path, *args: str, **keys: object) -> Job:
    keys = {"environment": "requirements.txt", **keys}
    return submit({"script": "train.py", "args": list(args or ("0",)), **keys}, api=live.api, folder=code)


def test_a_job_on_two_nodes_runs_in_what_its_requirements_say_and_shares_it(live: Live, code: Path) -> None:
    first = send(live, code, workers=2, roles={}).wait(100)
    assert first.state == "succeeded", live.lines(first)
    assert live.lines(first, "worker-1")[-1] == live.lines(first, "worker-0")[-1] == "tiny 1.0"
    held = send(live, code, "600")
    live.wait_state(held, "running")
    eventually(lambda: "tiny 1.0" in live.lines(held), 30, "its line")
    assert not any("[environment]" in line for line in live.lines(held))
    built = environments.ls(live.api)["built"]
    assert [(one["name"], one["users"]) for one in built] == [("requirements.txt", 1)]
    with pytest.raises(Conflict, match="in use by 1 shepherds"):
        environments.rm(built[0]["key"], live.api)
    held.stop()
    held.wait(30)
    eventually(lambda: environments.ls(live.api)["built"][0]["users"] == 0, 30, "its end")
    assert environments.show(built[0]["key"][:8], live.api)["packages"]["tiny"] == "1.0"
    assert environments.rm("requirements.txt", live.api)["key"] == built[0]["key"]
    with pytest.raises(NotFound, match="no environment 'requirements.txt' is built here"):
        environments.show("requirements.txt", live.api)


def test_while_it_builds_the_job_says_so_and_a_stop_is_obeyed(live: Live, code: Path) -> None:
    path = sdist(code / "src", "slow", SLOW)
    (code / "requirements.txt").write_text(f"--no-index\nsrc/{path.name}\n")
    job = send(live, code)
    eventually(lambda: any("Preparing metadata" in line for line in live.lines(job)), 60, "the build")
    why = live.api.request("GET", f"/jobs/{job.id}/why")
    assert why["message"].startswith("building environment requirements.txt on local")
    assert job.refresh().message == why["message"]
    assert "preparing" in [event["kind"] for event in job.events()]
    job.stop()
    assert job.wait(30).state == "stopped"
    eventually(lambda: not processes_of(live.home), 20, "the end of what was building")


def test_requirements_that_do_not_resolve_fail_the_job_with_the_line_and_are_not_tried_again(
    live: Live, code: Path
) -> None:
    (code / "requirements.txt").write_text("--no-index\n--find-links wheels\ntiny\nabsent>=2\n")
    job = send(live, code).wait(60)
    assert (job.state, job.reason, job.attempt) == ("failed", "environment_failed", 1)
    assert "line 4 of requirements.txt, 'absent>=2'" in job.message
    assert any("No matching distribution found for absent>=2" in line for line in live.lines(job))
    assert environments.ls(live.api)["built"] == []


def test_a_pyproject_that_needs_another_python_says_which_there_are(live: Live, code: Path) -> None:
    (code / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1"\nrequires-python = ">=3.99"\n')
    job = send(live, code, environment="pyproject.toml").wait(60)
    assert job.reason == "environment_failed"
    assert "needs Python >=3.99, and this node has 3." in job.message


def test_a_disk_that_fills_while_it_builds_is_said_and_nothing_is_left(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(code / "wheels", "tiny", "1.0", size=80 << 20)
    with small_disk(tmp_path / "disk", 48) as disk:
        monkeypatch.setenv("SHOAL_CACHE", str(disk))
        with live_server(tmp_path / "home") as live:
            job = send(live, code, retries=0).wait(100)
            assert (job.state, job.reason) == ("failed", "disk_full")
            assert "No space left on device" in job.message
            assert environments.ls(live.api)["built"] == []
            assert not [each for each in (disk / "environments").iterdir() if each.is_dir()]


def test_building_ahead_is_a_job_and_the_next_one_finds_it(live: Live, code: Path) -> None:
    assert environments.build(str(code / "requirements.txt"), live.api).wait(60).state == "succeeded"
    job = send(live, code).wait(60)
    assert live.lines(job) == ["tiny 1.0"]


def test_a_command_finds_the_environments_programs_first(live: Live, code: Path) -> None:
    job = submit(
        {"command": ["python", "-c", "import tiny; print(tiny.VERSION)"], "environment": "requirements.txt"},
        api=live.api,
        folder=code,
    ).wait(60)
    assert live.lines(job)[-1] == "1.0"
