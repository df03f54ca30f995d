"""The real shepherd, as a process of its own, and the server it talks to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal._lib import process
from shoal.contract import GANG, Process, Seat, Task

from .gang_server import SECRET, GangServer


def until(true: Callable[[], Any], seconds: float = 20.0, what: str = "") -> Any:
    """Waits for a condition and returns what it gave; fails with `what` when it never came."""
    deadline = time.monotonic() + seconds
    while True:
        found = true()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"never within {seconds:.0f} s: {what or true}")
        time.sleep(0.01)


class Flock:
    """One shepherd and its server, with short words for what a test does to them."""

    def __init__(self, archive: Path, folder: Path, processes: list[Process], **options: Any) -> None:
        self.archive = archive
        self.folder = folder / "gang"
        self.folder.mkdir(mode=0o700)
        self.work = folder / "work" / "job"
        self.key = f"j{os.getpid():x}{time.monotonic_ns():x}-1"
        self.server = GangServer(self.key, processes, options.pop("beat", 5.0))
        seats = [Seat(each.name, each.name.rpartition("-")[0], options.pop("ports", [])) for each in processes]
        self.task = Task(
            server=self.server.url,
            fingerprint=None,
            key=self.key,
            secret=SECRET,
            node="node0",
            host="127.0.0.1",
            folder=str(self.folder),
            work=str(self.work),
            seats=seats,
            log_limit=options.pop("log_limit", 64 * 1024 * 1024),
            cache=str(folder / "cache"),
        )
        self.file = self.folder / "node0.json"
        self.file.write_text(self.task.to_json())
        self.wrap: list[str] = []  # goes in front of the shepherd's command
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """As the local engine does: a session of its own and a clean environment."""
        shepherd = subprocess.Popen(
            [*self.wrap, sys.executable, "-I", "-S", str(self.archive), *options, str(self.file)],
            env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8"},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
        )
        self.started.append(shepherd)
        return shepherd

    def launch(self) -> subprocess.Popen[bytes]:
        self.server.direct("launch", roster=1)
        return self.start()

    def ended(self, count: int = 1, seconds: float = 20.0) -> list[dict[str, Any]]:
        """The reports of that many ends."""
        until(lambda: len(self.server.kinds("ended")) >= count, seconds, f"{count} ends; journal: {self.journal()}")
        return self.server.kinds("ended")

    def leave(self, shepherd: subprocess.Popen[bytes], seconds: float = 20.0) -> int:
        self.server.direct("leave")
        return shepherd.wait(seconds)

    def journal(self) -> str:
        path = self.folder / "node0.log"
        return path.read_text() if path.exists() else ""

    def alive(self) -> list[int]:
        """What still carries the gang's mark."""
        return process.marked(GANG, self.key)

    def close(self) -> None:
        for shepherd in self.started:
            if shepherd.poll() is None:
                shepherd.send_signal(signal.SIGKILL)
            shepherd.wait()
        process.sweep(GANG, self.key)
        self.server.switch_off()


def shell(name: str, script: str, **more: Any) -> Process:
    """A rank that runs a shell script."""
    return Process(name, ["/bin/sh", "-c", script], more.pop("env", {}), **more)


def python(name: str, script: str, **more: Any) -> Process:
    """A rank that runs a Python program."""
    return Process(name, [sys.executable, "-u", "-c", script], more.pop("env", {}), **more)
