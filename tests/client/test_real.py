"""The client against a real embedded server: nothing played, everything run."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import shoal
from shoal.client import data, trial
from shoal.client.connect import connect, here
from shoal.client.http import Api
from shoal.client.jobs import Job, JobFailed
from shoal.client.trial import good, try_job
from shoal.errors import BadSpec, Conflict, NotFound, NotServed, NotSignedIn
from shoal.home import Home

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]


def until(what: str, true: object, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"{what} did not happen within {seconds} s"
        time.sleep(0.02)


def servers(home: Home) -> list[int]:
    """The processes that serve this home, also those still on their way."""
    mark = ["-m", "shoal.server", "--home", str(home.root)]
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (folder / "cmdline").read_text().split("\0")[1:5] == mark:
                found.append(int(folder.name))
    return found


def end_server(home: Home, how: signal.Signals = signal.SIGTERM) -> None:
    for pid in servers(home):
        with suppress(ProcessLookupError):
            os.kill(pid, how)
    until("the server's end", lambda: not servers(home))


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("real") / "home")
    yield home
    end_server(home)


@pytest.fixture
def real(shared_home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setenv("SHOAL_HOME", str(shared_home.root))
    with connect() as api:
        yield api


@pytest.fixture
def own_server(own_home: Path) -> Iterator[Home]:
    """For tests that kill it."""
    home = Home(own_home)
    yield home
    end_server(home)


def python(code: str, **keys: object) -> shoal.CommandJob:
    return shoal.CommandJob([sys.executable, "-uc", code], **keys)  # type: ignore[arg-type]


def test_two_programs_that_start_at_once_get_one_server(own_server: Home) -> None:
    code = "import shoal; print(shoal.connect().request('GET', '/server')['url'])"
    programs = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    urls = [program.communicate(timeout=60)[0] for program in programs]
    assert [program.returncode for program in programs] == [0, 0]
    assert len(set(urls)) == 1
    until("the end of the one that was second", lambda: len(servers(own_server)) == 1)


def test_a_script_runs_and_its_output_comes_back(real: Api, project: Path, tmp_path: Path) -> None:
    (project / "train.py").write_text(
        "import os, pathlib, sys\nfrom words import WORD\n"
        "print(WORD, os.environ['RANK'], *sys.argv[1:])\npathlib.Path('made-' + os.environ['RANK']).write_text(WORD)\n"
    )
    (project / "words.py").write_text("WORD = 'hello'\n")
    (project / "secret.log").write_text("not to be sent")
    (project / ".gitignore").write_text("*.log\n")
    job = shoal.TorchJob(project / "train.py", workers=2, args=["--epochs", "5"]).submit(real).wait(60)
    assert (job.state, job.exit_code) == ("succeeded", 0)
    assert sorted((line.rank, line.text) for line in job.logs()) == [
        ("worker-0", "hello 0 --epochs 5"), ("worker-1", "hello 1 --epochs 5"),
    ]  # fmt: skip
    assert [line.rank for line in job.logs(rank=1)] == ["worker-1"]
    fetched = {file.name for file in job.get(tmp_path / "out").iterdir()}
    assert {"train.py", "words.py", "made-0", "made-1"} <= fetched
    assert "secret.log" not in fetched


def test_a_job_is_found_listed_explained_cloned_and_removed(real: Api) -> None:
    job = python("print(1)", name="find-me", tags=["one"]).submit(real).wait(60)
    assert shoal.find("find-me").id == job.id
    assert shoal.find(job.id[:6], real).id == job.id
    assert [one.id for one in shoal.jobs(api=real, tag="one", state="succeeded")] == [job.id]
    assert job.why()["state"] == "succeeded"
    assert [event["kind"] for event in job.events()][-1] == "succeeded"
    again = job.clone(name="again", workers=2).wait(60)
    assert (again.state, again.name, len(again.ranks)) == ("succeeded", "again", 2)
    job.remove()
    with pytest.raises(NotFound):
        job.refresh()


def test_stopping_ends_a_running_job(real: Api) -> None:
    job = python("import time\nprint('up')\ntime.sleep(600)").submit(real)
    assert next(job.logs(follow=True)).text == "up"
    with pytest.raises(Conflict, match="stop it first"):
        job.remove()
    assert job.stop(message="enough").wait(60).reason == "user_stop"
    assert job.message == "enough"


WAITING = """
import time
def waiting_for_the_moon():
    print("up", flush=True)
    time.sleep(600)
waiting_for_the_moon()
"""


def test_the_stacks_of_running_ranks_are_told_and_of_no_others(real: Api) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    job = python(WAITING, workers=2, env={"PATH": path}).submit(real)
    lines = job.logs(follow=True)
    assert {next(lines).text for _ in range(2)} == {"up"}
    found = job.stacks()
    assert found.keys() == {"worker-0", "worker-1"}
    assert all("waiting_for_the_moon" in text for text in found.values()), found
    assert job.stacks([1]).keys() == {"worker-1"}
    with pytest.raises(NotFound, match="has no rank 'server-0'"):
        job.stacks("server-0")
    job.stop(force=True).wait(60)
    with pytest.raises(Conflict, match="the job is stopped"):
        job.stacks()


def test_the_stacks_of_a_python_below_a_shell_are_told_too(real: Api) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = ["/bin/sh", "-c", '"$0" -uc "$1"; true', sys.executable, WAITING]
    job = shoal.CommandJob(words, env={"PATH": path}).submit(real)
    assert next(job.logs(follow=True)).text == "up"
    assert "waiting_for_the_moon" in job.stacks(0)["worker-0"]
    job.stop(force=True).wait(60)


def test_the_same_key_is_one_job(real: Api) -> None:
    first, second = (python("pass", key="only-once").submit(real) for _ in range(2))
    assert first.id == second.id


def test_what_the_server_refuses_arrives_as_its_exception(real: Api, project: Path) -> None:
    (project / "train.py").touch()
    with pytest.raises(NotServed, match="slurm"):
        shoal.TorchJob(project / "train.py", engine="slurm").submit(real)
    with pytest.raises(BadSpec, match="did you mean 'running'"):
        list(shoal.jobs(state="runing", api=real))
    with pytest.raises(NotSignedIn):
        list(shoal.jobs(api=Api(real.url, "wrong")))


def test_a_plan_says_what_would_start(real: Api, project: Path) -> None:
    (project / "train.py").touch()
    plan = shoal.TorchJob(project / "train.py", workers=2).plan(real)
    assert plan["totals"]["processes"] == 2


def test_in_place_runs_where_the_script_lies(real: Api, project: Path) -> None:
    (project / "here.py").write_text("import pathlib\npathlib.Path('trace').write_text('x')\n")
    job = shoal.submit(project / "here.py", in_place=True, api=real).wait(60)
    assert job.state == "succeeded"
    assert (project / "trace").exists()


def test_an_unchanged_folder_is_sent_once(real: Api, project: Path) -> None:
    (project / "big.bin").write_bytes(os.urandom(9 << 20))
    told: list[tuple[int, int]] = []
    for _ in range(2):
        job = shoal.CommandJob("test -s big.bin", folder=project).submit(real, lambda *now: told.append(now))
        assert job.wait(60).state == "succeeded"
    assert told[0] == (0, 9 << 20)
    assert told[-1] == (0, 0)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_remote_function_returns_its_value(real: Api, workers: int) -> None:
    @shoal.remote(workers=workers)
    def rank_and(word: str) -> list[str]:
        import os

        return [word, os.environ["RANK"], os.environ["WORLD_SIZE"]]

    assert rank_and("hello") == ["hello", "0", str(workers)]


def test_a_remote_function_that_raises_brings_its_traceback(real: Api) -> None:
    @shoal.remote
    def broken() -> None:
        raise ValueError("no such digit")

    with pytest.raises(JobFailed, match="ValueError: no such digit") as caught:
        broken()
    assert caught.value.job.reason == "python_error"


def test_a_remote_value_that_is_not_json_is_explained(real: Api) -> None:
    with pytest.raises(JobFailed, match="write everything else to files"):
        shoal.remote(object)()


def test_files_go_to_a_pool_into_a_job_and_back(real: Api, project: Path, tmp_path: Path) -> None:
    (project / "deep").mkdir()
    (project / "deep" / "a.txt").write_text("forty-two")
    (project / "big.bin").write_bytes(os.urandom(5 << 20))
    data.put(real, project, "pool://me/digits")
    code = "import os; print(open(os.environ['SHOAL_INPUTS'] + '/d/deep/a.txt').read())"
    job = python(code, inputs={"d": "pool://me/digits"}).submit(real).wait(60)
    assert [line.text for line in job.logs()] == ["forty-two"]
    data.get(real, "pool://me/digits", tmp_path / "back")
    assert (tmp_path / "back" / "big.bin").read_bytes() == (project / "big.bin").read_bytes()
    assert [file.path for file in data.ls(real, "pool://me/digits/deep")] == ["digits/deep/a.txt"]
    assert data.rm(real, "pool://me/digits") == 2


def test_a_trial_that_outlives_its_minute_is_good(real: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "SECONDS", 1.0)
    job = try_job(python("import time\ntime.sleep(600)", workers=8, cpu=64, grace=1)).wait(60)
    assert (job.state, job.reason) == ("stopped", "max_duration")
    assert good(job)
    assert len(job.ranks) == 1
    assert not good(try_job(python("raise SystemExit(3)")).wait(60))
    assert here().url == real.url


def test_the_asynchronous_twins_do_the_same(real: Api) -> None:
    async def whole_life() -> tuple[list[str], str]:
        job = await shoal.asubmit(python("print('a')\nprint('b')"), api=real)
        lines = [line.text async for line in job.logs(follow=True)]
        return lines, (await job.wait(60)).state

    assert asyncio.run(whole_life()) == (["a", "b"], "succeeded")


COUNTER = """
import os, pathlib, time
for number in range(400):
    print(number)
    time.sleep(0.005)
while not pathlib.Path(os.environ["GO"]).exists():
    time.sleep(0.02)
print("end")
"""


def test_a_killed_server_costs_a_follower_nothing(own_server: Home, tmp_path: Path) -> None:
    api = connect()
    job = python(COUNTER, workers=2, env={"GO": str(tmp_path / "go")}).submit(api)
    got: list[tuple[str, str]] = []
    outcome: list[Job] = []

    def follow() -> None:
        got.extend((line.rank, line.text) for line in job.logs(follow=True))
        outcome.append(job.wait())

    follower = threading.Thread(target=follow)
    follower.start()
    until("some lines", lambda: any(line.text == "50" for line in shoal.find(job.id, api).logs()))
    end_server(own_server, signal.SIGKILL)
    assert connect().url == api.url
    (tmp_path / "go").touch()
    follower.join(90)
    assert not follower.is_alive()
    for rank in ("worker-0", "worker-1"):
        assert [text for whose, text in got if whose == rank] == [*map(str, range(400)), "end"]
    assert outcome[0].state == "succeeded"
