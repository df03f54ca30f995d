"""The ways of keeping jobs apart that this machine can show: bubblewrap everywhere it is installed, `user` for root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal.client.http import Api
from shoal.engine.isolation import FIRST_UID
from shoal.engine.offers import SYSTEM
from tests.support.live import Live, live_server

MODES = ("user", "bubblewrap") if os.geteuid() == 0 else ("bubblewrap",)


@contextmanager
def reachable_folder() -> Iterator[Path]:
    """A folder that every user of the machine can enter; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-modes-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def isolated_server(mode: str, *options: str, **isolation: Any) -> Iterator[Live]:
    """A server whose jobs are kept apart in that way, with four cores to give away."""
    with reachable_folder() as folder:
        home = folder / "home"
        home.mkdir(mode=0o700)
        lines = [f"{key} = {json.dumps(value)}" for key, value in {"mode": mode, **isolation}.items()]
        (home / "config.toml").write_text("\n".join(["[isolation]", *lines, ""]))
        with live_server(home, "--cpus", "4", *options) as live:
            yield live


def add_user(live: Live, name: str) -> Api:
    """A new user, and his connection."""
    live.api.request("POST", "/users", json={"name": name})
    token = live.api.request("POST", "/tokens", json={"user": name})["token"]
    return Api(live.api.url, token)


def python_of_all() -> str:
    """An interpreter that every user of the machine can start: a venv may be made from one in root's own folder."""
    for python in (sys.executable, *SYSTEM):
        switch: dict[str, Any] = {"user": FIRST_UID, "group": FIRST_UID} if os.geteuid() == 0 else {}
        try:
            if subprocess.run([python, "-c", ""], cwd="/", **switch).returncode == 0:
                return python
        except PermissionError:
            continue
    raise AssertionError(
        f"no user but this one can start {sys.executable}; install python3 for all: apt install python3"
    )
