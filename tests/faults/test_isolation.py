"""Two jobs of two users at once: one tries everything against the other and gets nothing, unless nothing is between.

The same attacks are run where jobs are not kept apart, so that it is known that they work.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from shoal._lib import process
from shoal.client.http import Api
from shoal.client.jobs import Job, submit
from shoal.errors import NotAllowed
from tests.support.live import Live, eventually, processes_of, shepherd_of, signal_process
from tests.support.modes import MODES, add_user, isolated_server, python_of_all, reachable_folder

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]

SECRET = "bobs-own-4711"

VICTIM = """
import os, pathlib, time
secret = os.environ["PASSWORD"]
pathlib.Path("written.txt").write_text(secret)
pathlib.Path(os.environ["SHOAL_SHARED"], "shared").write_text(secret)
print("the secret is", secret, flush=True)
while not os.path.exists("outputs/go"):
    time.sleep(0.05)
print("still here", flush=True)
"""

# What it gets is printed as names. The secret comes backwards, so that the attacker's own words are not found.
ATTACK = """
import ctypes, json, os, signal, sys

aim = json.loads(sys.argv[1])
secret = aim["terces"][::-1].encode()
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
got = []

def attempt(name, act):
    try:
        if act():
            got.append(name)
    except OSError:
        pass

def read(path):
    with open(path, "rb") as file:
        return file.read(1 << 20)

def finds(folder):
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                if secret in read(os.path.join(path, name)):
                    return True
            except OSError:
                continue
    return False

def attach(pid):
    if libc.ptrace(16, pid, None, None) != 0:
        return False
    os.waitpid(pid, 0x40000000)
    libc.ptrace(17, pid, None, None)
    return True

def numbered(act):
    def any_of_them():
        for pid in aim["pids"]:
            try:
                if act(pid):
                    return True
            except OSError:
                continue
        return False
    return any_of_them

for name, path in aim["files"].items():
    attempt(name, lambda: read(path) != b"")
for name, folder in aim["folders"].items():
    attempt(name, lambda: finds(folder))
attempt("environment", numbered(lambda pid: secret in read(f"/proc/{pid}/environ")))
attempt("memory", numbered(lambda pid: open(f"/proc/{pid}/mem", "rb") is not None))
attempt("files through /proc", numbered(lambda pid: secret in read(f"/proc/{pid}/cwd/written.txt")))
attempt("ptrace", numbered(attach))
attempt("signal", numbered(lambda pid: os.kill(pid, signal.SIGCONT) is None))
attempt("signal the server", lambda: os.kill(aim["server"], signal.SIGCONT) is None)
attempt("write", lambda: open(aim["files"]["work"], "a").close() is None)
attempt("remove", lambda: os.unlink(aim["files"]["work"]) is None)
attempt("kill", lambda: os.kill(aim["rank"], signal.SIGKILL) is None)
print(json.dumps(got), flush=True)
"""

EVERYTHING = {
    "token", "database", "settings", "chunks", "logs", "work", "task", "spool", "shared memory", "whole home",
    "environment", "memory", "files through /proc", "ptrace", "signal", "signal the server", "write", "remove", "kill",
}  # fmt: skip


@pytest.fixture
def folder() -> Iterator[Path]:
    with reachable_folder() as made:
        made.chmod(0o755)
        yield made


def victim(live: Live, bob: Api, folder: Path) -> Job:
    """A job whose secret is in its code, its environment, its files, its memory and its log."""
    (folder / "code").mkdir()
    (folder / "code" / "victim.py").write_text(VICTIM + f"# {SECRET}\n")
    job = submit(
        str(folder / "code" / "victim.py"), api=bob, environment=python_of_all(), env={"PASSWORD": SECRET}, retries=0
    )
    eventually(lambda: live.lines(job) == [f"the secret is {SECRET}"], 30, "the victim's first line")
    return job


def attack(live: Live, ada: Api, job: Job) -> set[str]:
    """What an attacker gets who has been told where everything is."""
    home, key = live.home, f"{job.id}-1"
    ranks = [p for p in processes_of(home, key) if p.environ().get("SHOAL_MEMBER")]
    note = home.read_note()
    assert note is not None
    files = {
        "token": home.token_file,
        "database": home.database,
        "settings": home.config_file,
        "work": home.work / job.id / "written.txt",
        "task": home.gangs / key / "local.json",
    }
    folders = {
        "chunks": home.blobs,
        "logs": home.logs / job.id,
        "spool": home.gangs / key / "shepherd" / "spool",
        "shared memory": Path("/dev/shm") / f"shoal-{key}-local",
        "whole home": home.root,
    }
    aim: dict[str, Any] = {
        "terces": SECRET[::-1],
        "files": {name: str(path) for name, path in files.items()},
        "folders": {name: str(path) for name, path in folders.items()},
        "pids": [p.pid for p in processes_of(home, key)],
        "rank": ranks[0].pid,
        "server": note.pid,
    }
    told = {"command": [python_of_all(), "-c", ATTACK, json.dumps(aim)], "retries": 0}
    attacker = Job(ada, ada.request("POST", "/jobs", json={"spec": told}))
    live.wait_state(attacker, "succeeded", "failed")
    assert attacker.state == "succeeded", live.lines(attacker)
    return set(json.loads(live.lines(attacker)[-1]))


@pytest.mark.parametrize("mode", MODES)
def test_a_job_gets_nothing_of_another_users(mode: str, folder: Path) -> None:
    with isolated_server(mode) as live:
        bob, ada = add_user(live, "bob"), add_user(live, "ada")
        job = victim(live, bob, folder)
        assert attack(live, ada, job) == set()
        (live.home.work / job.id / "outputs" / "go").touch()
        live.wait_state(job, "succeeded", "failed")
        assert (job.state, live.lines(job)[-1]) == ("succeeded", "still here")


def test_without_isolation_the_same_attacks_succeed(folder: Path) -> None:
    with isolated_server("none") as live:
        bob, ada = add_user(live, "bob"), add_user(live, "ada")
        job = victim(live, bob, folder)
        assert attack(live, ada, job) == EVERYTHING
        live.wait_state(job, "failed")
        assert job.reason == "killed"


def test_with_a_second_user_they_are_kept_apart_without_being_asked_to(folder: Path) -> None:
    with isolated_server("auto") as live:
        assert live.api.request("GET", "/server")["isolation"]["mode"] == "none"
        bob, ada = add_user(live, "bob"), add_user(live, "ada")
        assert live.api.request("GET", "/server")["isolation"]["mode"] in MODES
        assert attack(live, ada, victim(live, bob, folder)) == set()


@pytest.mark.parametrize("mode", MODES)
def test_only_an_administrator_runs_in_place_where_jobs_are_kept_apart(mode: str, folder: Path) -> None:
    with isolated_server(mode) as live:
        ada = add_user(live, "ada")
        body = {"spec": {"command": ["cat", "note"], "in_place": True}, "in_place": str(folder)}
        with pytest.raises(NotAllowed, match="only an administrator runs in place"):
            ada.request("POST", "/jobs", json=body)
        (folder / "note").write_text("here\n")
        folder.chmod(0o777)  # the job's user must be able to write there, as for any program of his
        job = Job(live.api, live.api.request("POST", "/jobs", json=body))
        live.wait_state(job, "succeeded", "failed")
        assert live.lines(job) == ["here"]


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("bubblewrap", "bubblewrap is not installed; install"),
        ("user", "others cannot enter|the server does not run as root"),
    ],
)
def test_a_server_that_cannot_have_what_was_asked_for_does_not_start(mode: str, said: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(f'[isolation]\nmode = "{mode}"\n')
    started = subprocess.run(
        [sys.executable, "-m", "shoal.server", "--home", str(tmp_path / "home")],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert started.returncode == 1
    assert re.search(f"the server cannot start: isolation.mode = '{mode}' cannot be had here: ({said})", started.stderr)


COUNT = """
import os, time
for number in range(200):
    print("line", number, flush=True)
    time.sleep(0.01)
with open("outputs/result", "w") as file:
    file.write(os.environ["SHOAL_MEMBER"])
"""


@pytest.mark.parametrize("mode", MODES)
def test_a_job_outlives_the_server_and_its_lines_and_outputs_arrive(mode: str, tmp_path: Path) -> None:
    with isolated_server(mode, "--nodes", "2") as live:
        add_user(live, "ada")
        job = live.submit(
            [python_of_all(), "-c", COUNT], owner="ada", workers=2, resources={"cpu": 4}, outputs="pool://ada/kept"
        )
        live.wait_state(job, "running")
        eventually(lambda: len(live.lines(job)) > 20, 30, "the first lines")
        live.kill()
        live.start()
        live.wait_state(job, "succeeded", "failed")
        assert (job.state, job.attempt) == ("succeeded", 1), job.data
        for rank in ("worker-0", "worker-1"):
            assert live.lines(job, rank) == [f"line {number}" for number in range(200)]
        assert job.get(tmp_path / "got", "outputs/result").read_text().startswith("worker-")
        eventually(lambda: not list(live.home.gangs.iterdir()), 60, "the end of the gang's folder")
        eventually(lambda: not processes_of(live.home, f"{job.id}-1"), 30, "the end of all its processes")


@pytest.mark.parametrize("mode", MODES)
def test_a_stop_gives_grace_and_then_ends_what_ignores_it(mode: str) -> None:
    with isolated_server(mode) as live:
        polite = "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit(print('bye', flush=True)))\n"
        deaf = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\n"
        wait = "print('ready', flush=True)\ntime.sleep(600)"
        jobs = [live.submit([python_of_all(), "-c", code + wait], grace="2s") for code in (polite, deaf)]
        for job in jobs:
            eventually(lambda job=job: live.lines(job) == ["ready"], 30, "ready")  # type: ignore[misc]
            job.stop()
        for job, lines in zip(jobs, (["ready", "bye"], ["ready"]), strict=True):
            live.wait_state(job, "stopped")
            assert live.lines(job) == lines
            eventually(lambda job=job: not processes_of(live.home, f"{job.id}-1"), 30, "its end")  # type: ignore[misc]


SPOOLED = """
import os, time
for n in range(50): print("line", n, flush=True)
while not os.path.exists("outputs/go"): time.sleep(0.02)
for n in range(50, 100): print("line", n, flush=True)
open("outputs/said", "w").close()
time.sleep(600)
"""


@pytest.mark.parametrize("mode", MODES)
def test_what_a_killed_shepherd_had_not_sent_still_arrives(mode: str) -> None:
    with isolated_server(mode) as live:
        job = live.submit([python_of_all(), "-c", SPOOLED], retries=0)
        eventually(lambda: len(live.lines(job)) == 50, 30, "the first lines")
        key, outputs = f"{job.id}-1", live.home.work / job.id / "outputs"
        live.kill()
        (outputs / "go").touch()
        eventually((outputs / "said").exists, 30, "the last words")
        spool = live.home.gangs / key / "shepherd" / "spool" / "worker-0"
        eventually(lambda: b"line 99" in b"".join(file.read_bytes() for file in spool.iterdir()), 30, "the spooling")
        shepherd = shepherd_of(live.home, key)
        signal_process(shepherd, signal.SIGKILL)
        eventually(lambda: not process.alive(shepherd.pid), 10, "its death")
        live.start()
        live.wait_state(job, "failed")
        assert job.reason == "shepherd_lost"
        eventually(lambda: len(live.lines(job)) >= 100, 30, "the rest of the lines")
        assert live.lines(job) == [f"line {n}" for n in range(100)]
        assert not psutil.pid_exists(shepherd.pid)
