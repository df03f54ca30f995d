"""The server as a process seen from outside: started in the background, found, stopped. Imports no web framework."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError

from shoal._lib.clock import Deadline
from shoal.errors import ServerAway, ServerRunning
from shoal.home import DATABASE_VARIABLE, Home, ServerNote
from shoal.server.lock import holder_of

START_SECONDS = 30.0
STOP_SECONDS = 10.0
ALREADY = 3  # exit status of a second server on the same home
LAST_LINES = 15


def start(home: Home, options: Mapping[str, Any] | None = None) -> ServerNote:
    """Starts a server of its own session and returns once it answers.

    ServerRunning when the home has one; ServerAway with the log's last lines when it dies or does not answer.
    """
    running = status(home)
    if running is not None:
        raise ServerRunning(running.url, running.pid)
    said = home.log_size()
    child = _spawn(home, options or {})
    deadline = Deadline(START_SECONDS)
    while not deadline.over():
        note = _note_of(home, child.pid)
        if note is not None and answers(note):
            return note
        if child.poll() is not None:
            raise _died(home, child.returncode, said)
        time.sleep(0.02)
    child.terminate()
    raise ServerAway(f"the server did not answer within {START_SECONDS:.0f} s; {_last_lines(home.server_log, said)}")


def stop(home: Home) -> ServerNote | None:
    """Ends the server of this home and waits until it is gone; jobs keep running. None when there was none."""
    note = status(home)
    if note is None:
        return None
    try:
        os.kill(note.pid, signal.SIGTERM)
    except ProcessLookupError:
        return note
    deadline = Deadline(STOP_SECONDS)
    while holder_of(home.lock_file) == note.pid:
        if deadline.over():
            raise ServerAway(
                f"the server, process {note.pid}, did not end within {STOP_SECONDS:.0f} s; look at its log"
            )
        time.sleep(0.02)
    return note


def status(home: Home) -> ServerNote | None:
    """The note of the server that holds this home now; None when nobody does.

    The lock says that it lives and which process it is: a pid that another program has by now is never taken for it.
    """
    pid = holder_of(home.lock_file)
    return None if pid is None else _note_of(home, pid)


def answers(note: ServerNote, timeout: float = 1.0) -> bool:
    """Whether it says that it is well. The certificate is not checked here: nothing is told to the server."""
    context = ssl._create_unverified_context() if note.url.startswith("https:") else None
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), *([urllib.request.HTTPSHandler(context=context)] if context else [])
    )
    try:
        with opener.open(f"{note.url}/healthz", timeout=timeout) as answer:
            return bool(json.load(answer).get("ok"))
    except (URLError, OSError, ValueError):
        return False


def command(home: Home, options: Mapping[str, Any]) -> list[str]:
    """The command line that runs a server in the foreground, with `environment` around it."""
    line = [sys.executable, "-m", "shoal.server", "--home", str(home.root)]
    for name, value in options.items():
        if name == "database":
            continue
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            line.append(flag)
        elif value is not None and value is not False:
            line += [flag, str(value)]
    return line


def environment(options: Mapping[str, Any]) -> dict[str, str]:
    """This process's, and what no command line may show: every user of the machine can read those."""
    database = options.get("database")
    return {**os.environ, **({DATABASE_VARIABLE: str(database)} if database is not None else {})}


def _spawn(home: Home, options: Mapping[str, Any]) -> subprocess.Popen[bytes]:
    home.create()
    descriptor = os.open(home.server_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        # In its home, not in the user's folder: -m puts the current folder on the path, where a json.py may lie.
        return subprocess.Popen(
            command(home, options),
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            cwd=home.root,
            env=environment(options),
            start_new_session=True,
        )
    finally:
        os.close(descriptor)


def _note_of(home: Home, pid: int) -> ServerNote | None:
    try:
        note = home.read_note()
    except (ValueError, TypeError):
        return None  # of another version
    return note if note is not None and note.pid == pid else None


def _died(home: Home, code: int, said: int) -> ServerAway | ServerRunning:
    running = status(home)
    if code == ALREADY and running is not None:
        return ServerRunning(running.url, running.pid)
    return ServerAway(f"the server ended with status {code} while starting; {_last_lines(home.server_log, said)}")


def _last_lines(path: Path, said: int) -> str:
    """What was written behind the first `said` bytes: an earlier server's words explain nothing."""
    try:
        with path.open("rb") as file:
            file.seek(max(said, file.seek(0, os.SEEK_END) - 16_384))
            lines = file.read().decode("utf-8", "replace").splitlines()[-LAST_LINES:]
    except FileNotFoundError:
        return f"{path} does not exist"
    return f"the last lines of {path}:\n" + "\n".join(lines)
