"""A server to measure: in a folder and on a port of its own, gone afterwards with all it started."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal._lib.clock import Deadline
from shoal.client.http import Api
from shoal.client.jobs import Job, submit
from shoal.errors import ServerAway
from shoal.home import HOME_VARIABLE, Home

SCRIPTS = Path(__file__).parent / "scripts"
START_SECONDS = 30.0
END_SECONDS = 60.0
ACTIVE = "queued,starting,running,stopping"


@dataclass(frozen=True)
class Site:
    """A running server. `environment` is what a command needs to find it; `folder` is for whatever the bench writes."""

    home: Home
    api: Api
    pid: int
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def submit(self, source: Any, **keys: Any) -> Job:
        return submit(source, api=self.api, base=self.folder, **keys)

    def command(self, argv: list[str], **keys: Any) -> Job:
        return self.submit({"command": argv, **keys})

    def lay_out(self, script: str) -> Path:
        """A copy of one of our scripts, alone in a folder, as a user's would be."""
        target = self.folder / Path(script).stem / script
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(SCRIPTS / script, target)
        return target

    def active(self) -> list[dict[str, Any]]:
        return list(self.api.request("GET", "/jobs", params={"state": ACTIVE, "limit": 500})["jobs"])


@contextmanager
def site(
    settings: Mapping[str, Any] | None = None, path: Path | None = None, home: Path | None = None
) -> Iterator[Site]:
    """A server with these keys of [server]; `path` is put on its import path; `home` is one that was filled before."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-bench-"))
    root = Home(home or folder / "home")
    environment = _environment(root, path)
    server = _start(root, settings or {}, environment)
    try:
        api = _reach(root, server)
        work = folder / "work"
        work.mkdir()
        try:
            yield Site(root, api, server.pid, work, environment)
        finally:
            _end_jobs(api)
            api.close()
    finally:
        _stop(server)
        shutil.rmtree(folder, ignore_errors=True)


def _environment(home: Home, path: Path | None) -> dict[str, str]:
    """The caller's, without what it says about a server of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    if path is not None:
        kept["PYTHONPATH"] = os.pathsep.join([str(path), *filter(None, [kept.get("PYTHONPATH")])])
    return {**kept, HOME_VARIABLE: str(home.root), "SHOAL_CACHE": str(home.root / "cache")}


def _start(home: Home, settings: Mapping[str, Any], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    home.create()
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    home.config_file.write_text("\n".join(["[server]", *lines, ""]))
    with home.server_log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "shoal.server", "--home", str(home.root)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=home.root,
            env=dict(environment),
            start_new_session=True,
        )


def _reach(home: Home, server: subprocess.Popen[bytes]) -> Api:
    deadline = Deadline(START_SECONDS)
    while not deadline.over() and server.poll() is None:
        note, token = home.read_note(), home.read_token()
        if note is not None and note.pid == server.pid and token is not None:
            api = Api(note.url, token, note.fingerprint, timeout=120)
            if api.healthy():
                return api
            api.close()
        time.sleep(0.02)
    words = home.server_log.read_text(errors="replace")[-2000:]
    raise ServerAway(f"the server to measure did not start; the end of its log:\n{words}")


def _end_jobs(api: Api) -> None:
    """Nothing that a bench started outlives it."""
    deadline = Deadline(END_SECONDS)
    while not deadline.over():
        left = api.request("GET", "/jobs", params={"state": ACTIVE, "limit": 500})["jobs"]
        if not left:
            return
        for line in left:
            if line["state"] != "stopping":
                api.request("POST", f"/jobs/{line['id']}/stop", json={"force": True}, again=True)
        time.sleep(0.2)


def _stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
    try:
        server.wait(15)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
