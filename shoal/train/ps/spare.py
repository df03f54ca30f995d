"""The parent of a server: keeps the listening socket, one process that serves, and one that is ready to.

Importing torch takes longer than a worker should wait, so a *spare* has done it already and waits for a word. The
socket belongs to the parent and is inherited: while nobody serves, calls queue in it instead of being refused. The
state lies in files of shared memory, which outlive whoever wrote them. The parent imports no torch and decides little,
so that it has little to die of; its children end with it.

    parent → child   {"serve": {...}}           go, with what the one before had told
    child  → parent  {"warm": true}             everything is imported
                     {"serving": true}          calls are taken
                     {"seen": [...]}            which workers have called so far
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_log = logging.getLogger("shoal.train")

Command = Callable[[int, int], list[str]]  # (descriptor of the listener, of the control socket) → argv

GRACE = 8.0  # seconds a child has to end after SIGTERM
MOST_DEATHS = 5  # of serving processes, none of which lived for LONG: something kills each of them
LONG = 30.0  # seconds
PAUSE = 0.5  # seconds before a spare that died is replaced


class Child:
    """A process that serves or will."""

    def __init__(self, argv: Command, listener: socket.socket) -> None:
        self.control, theirs = socket.socketpair()
        with theirs:
            fds = (listener.fileno(), theirs.fileno())
            # A group of its own would escape the shepherd's; it stays in ours and dies with us by PR_SET_PDEATHSIG.
            self.process = subprocess.Popen(argv(*fds), pass_fds=fds, stdin=subprocess.DEVNULL)
        self.control.setblocking(False)
        self.warm = self.serving = False
        self.hung_up = False  # it will say nothing more; its end is near
        self.asked_at = 0.0  # when it was told to serve; 0 for a spare
        self._heard = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def serve(self, told: dict[str, Any]) -> None:
        """Tells it to serve, as soon as it can."""
        self.asked_at = time.monotonic()
        with suppress(OSError):
            self.control.sendall(json.dumps({"serve": told}).encode() + b"\n")

    def hear(self) -> list[dict[str, Any]]:
        """What it said since the last time."""
        with suppress(OSError):
            while piece := self.control.recv(65536):
                self._heard += piece
            self.hung_up = True
        *lines, self._heard = self._heard.split(b"\n")
        words = [json.loads(line) for line in lines]
        for word in words:
            self.warm |= bool(word.get("warm"))
            self.serving |= bool(word.get("serving"))
        return words

    def end(self, until: float) -> None:
        """In order while there is time, then at once."""
        with suppress(OSError):
            self.control.close()  # a spare ends by itself when nobody can call it any more
        try:
            self.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Supervisor:
    """Runs until the serving process ends by itself, or SIGTERM comes. `run` returns the exit code."""

    def __init__(self, name: str, listener: socket.socket, argv: Command, spares: int = 1) -> None:
        self.name = name
        self._listener, self._argv, self._spares = listener, argv, spares
        self._told: dict[str, Any] = {"seen": [], "takeovers": 0, "starter": os.getppid()}
        self._child = Child(argv, listener)
        self._spare: Child | None = None
        self._deaths = 0  # in a row
        self._next_spare = 0.0
        self._stopped: int | None = None  # the signal
        self._ear, self._mouth = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> int:
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._mouth, warn_on_full_buffer=False)
        try:
            self._child.serve(self._told)
            while True:
                code = self._look()
                if code is not None:
                    return code
                self._wait()
        finally:
            self._end_all()
            signal.set_wakeup_fd(-1)
            os.close(self._ear)
            os.close(self._mouth)
            for number, action in before.items():
                signal.signal(number, action)

    def _on_signal(self, number: int, _frame: object) -> None:
        self._stopped = number

    def _look(self) -> int | None:
        """One look at everything; the exit code when it is over."""
        self._hear(self._child)
        if self._stopped is not None:
            return self._stop()
        code = self._child.process.poll()
        if code == 0:
            return 0
        if code is not None:
            self._deaths = 1 if time.monotonic() - self._child.asked_at > LONG else self._deaths + 1
            if self._deaths >= MOST_DEATHS:
                _log.error("%s: %d processes died soon after they began to serve; giving up", self.name, self._deaths)
                return 1
            self._take_over(code)
        self._keep_spare()
        return None

    def _stop(self) -> int:
        _log.info("%s: ends, asked by %s", self.name, signal.Signals(self._stopped or 0).name)
        with suppress(ProcessLookupError):
            self._child.process.terminate()
        try:
            code = self._child.process.wait(GRACE)
            return 0 if code in (0, -signal.SIGTERM) else 1  # one that was not ready yet dies of the signal
        except subprocess.TimeoutExpired:
            _log.warning("%s: the serving process did not end within %g s and is killed", self.name, GRACE)
            return 1

    def _take_over(self, code: int) -> None:
        old, how = self._child, _how(code)
        old.control.close()
        ready = self._spare
        self._child = ready or Child(self._argv, self._listener)
        self._spare = None
        self._told["takeovers"] += 1
        self._child.serve(self._told)
        state = "a warm spare" if self._child.warm else "a spare that is not warm yet" if ready else "a new process"
        _log.warning(
            "%s: the serving process %d %s; %s, process %d, serves on", self.name, old.pid, how, state, self._child.pid
        )

    def _keep_spare(self) -> None:
        """One spare, once the first process serves: two imports at the start would slow the workers' own down."""
        if self._spare is not None:
            self._hear(self._spare)
            code = self._spare.process.poll()
            if code is None:
                return
            _log.warning("%s: the spare %d %s; another is started", self.name, self._spare.pid, _how(code))
            self._spare.control.close()
            self._spare, self._next_spare = None, time.monotonic() + PAUSE
        if self._spares and self._child.serving and time.monotonic() >= self._next_spare:
            self._spare = Child(self._argv, self._listener)

    def _hear(self, child: Child) -> None:
        for word in child.hear():
            if word.get("warm") and child is self._spare:
                _log.info("%s: the spare %d is warm", self.name, child.pid)
            if word.get("serving"):
                _log.info("%s: process %d serves at port %d", self.name, child.pid, self._listener.getsockname()[1])
            if "seen" in word:
                self._told["seen"] = word["seen"]

    def _wait(self) -> None:
        """Until a child says something, a child ends, or a signal comes."""
        poll = select.poll()
        poll.register(self._ear, select.POLLIN)
        for child in (self._child, self._spare):
            if child is not None and not child.hung_up:
                poll.register(child.control, select.POLLIN)
        due = self._next_spare if self._spares and self._spare is None and self._child.serving else 0.0
        poll.poll(max(0.0, due - time.monotonic()) * 1000 if due else None)
        with suppress(BlockingIOError):
            os.read(self._ear, 4096)

    def _end_all(self) -> None:
        until = time.monotonic() + GRACE
        for child in (self._spare, self._child):
            if child is not None:
                child.end(until if child is self._spare else time.monotonic())


def command(*arguments: str) -> Command:
    """How a child is started: the same module, told that it is one."""

    def argv(listener: int, control: int) -> list[str]:
        own = ["--child", f"{listener},{control},{os.getpid()}"]
        return [sys.executable, "-m", "shoal.train.ps", *own, *arguments]

    return argv


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
