"""A real server process on a home of its own, to be used, killed and started again by tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil

from shoal.client.http import Api
from shoal.client.jobs import Job
from shoal.home import Home

T = TypeVar("T")


def eventually(look: Callable[[], T], seconds: float = 60.0, what: str = "it") -> T:
    """Asks again until the answer is true; fails with the last answer when the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen within {seconds:g} s; last answer: {found!r}")
        time.sleep(0.05)


class Live:
    """The server of one home. `kill` is SIGKILL; `start` after it is what an administrator would do."""

    def __init__(self, root: Path, *options: str) -> None:
        self.home = Home(root)
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None
        self._api: Api | None = None

    def start(self) -> Live:
        self.home.create()
        with self.home.server_log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "shoal.server", "--home", str(self.home.root), *self.options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        eventually(self._answers, 30, "the server's answer")
        return self

    @property
    def api(self) -> Api:
        if self._api is None:
            note, token = self.home.read_note(), self.home.read_token()
            assert note is not None and token is not None
            self._api = Api(note.url, token, note.fingerprint)
        return self._api

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(20)

    def submit(self, command: list[str] | None = None, **keys: Any) -> Job:
        """A command job without an uploaded folder; cheap enough to have many."""
        spec = {"command": command, **keys} if command else keys
        return Job(self.api, self.api.request("POST", "/jobs", json={"spec": spec}))

    def python(self, code: str, *arguments: str, **keys: Any) -> Job:
        return self.submit([sys.executable, "-c", code, *arguments], **keys)

    def lines(self, job: Job, rank: str | None = None) -> list[str]:
        return [line.text for line in job.logs(rank=rank)]

    def wait_state(self, job: Job, *states: str, seconds: float = 60.0) -> Job:
        eventually(lambda: job.refresh().state in states, seconds, f"{job.id} being {' or '.join(states)}")
        return job

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the server ended with {self.process.returncode}: {self.home.server_log.read_text()}")
        note = self.home.read_note()
        if note is None or note.pid != self.process.pid:
            return False
        if self._api is not None and self._api.url != note.url:
            self._api = None
        return self.home.read_token() is not None and self.api.healthy()


@contextmanager
def live_server(root: Path, *options: str) -> Iterator[Live]:
    """A server for the time of a test; whatever it started is gone afterwards, and a leftover is a failure."""
    live = Live(root, *options).start()
    try:
        yield live
    finally:
        live.stop()
        left = processes_of(live.home)
        for process in left:
            signal_process(process, signal.SIGKILL)
        psutil.wait_procs(left, timeout=10)


def processes_of(home: Home, key: str | None = None) -> list[psutil.Process]:
    """Every process that carries the mark of a gang of this home: shepherds, ranks, and what they forked."""
    found = []
    known = {folder.name for folder in home.gangs.iterdir()} if home.gangs.exists() else set()
    for process in psutil.process_iter():
        try:
            gang = process.environ().get("SHOAL_GANG")
            if process.status() != psutil.STATUS_ZOMBIE and gang and (gang == key if key else gang in known):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def shepherd_of(home: Home, key: str) -> psutil.Process:
    """The shepherd among a gang's processes: the one that runs the zipapp, not the sandbox around it."""
    running = [p for p in processes_of(home, key) if any(part.endswith(".pyz") for part in p.cmdline())]
    return next(p for p in running if p.name() != "bwrap")


def signal_process(process: psutil.Process, number: signal.Signals) -> None:
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        pass
