"""A gang on this machine for one measurement: workers that run a function of a bench script, servers of the library,
told of each other as a job would tell them. Only what the scripts beside this one need."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal import contract
from shoal._lib.ports import free_ports
from shoal.contract import Member, Roster

LIMIT = 180.0  # seconds for one measurement
GRACE = 10.0  # seconds a server has to end
PORT = "train"


@dataclass
class Gang:
    """Processes by name: worker-0, server-0. Nobody runs until `start`."""

    folder: Path
    commands: dict[str, list[str]]
    variables: dict[str, dict[str, str]]
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def start(self, *names: str) -> None:
        for name in names or self.commands:
            with open(self.log(name), "a") as log:
                self.processes[name] = subprocess.Popen(
                    self.commands[name],
                    env=self.variables[name],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE if name.startswith("worker") else log,
                    stderr=log,
                    text=True,
                    start_new_session=True,
                )

    def log(self, name: str) -> Path:
        """What a process said besides its figures."""
        return self.folder / f"{name}.log"

    def said(self, name: str, limit: float = LIMIT) -> list[dict[str, Any]]:
        """The JSON lines a worker has printed by its end."""
        out, _ = self.processes[name].communicate(timeout=limit)
        found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        if self.processes[name].returncode or not found:
            raise self._failed(name)
        return found

    def next(self, name: str) -> dict[str, Any]:
        """The next JSON line of a worker that runs."""
        out = self.processes[name].stdout
        assert out is not None
        for line in out:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise self._failed(name)

    def serving(self) -> int:
        """The process that serves for server-0 now: a child of the one that was started."""
        return int(re.findall(r"process (\d+) serves", self.log("server-0").read_text())[-1])

    def kill(self, name: str) -> None:
        """SIGKILL to the process and its children."""
        os.killpg(self.processes[name].pid, signal.SIGKILL)

    def _failed(self, name: str) -> RuntimeError:
        code, words = self.processes[name].wait(), self.log(name).read_text()[-2000:]
        return RuntimeError(f"{name} ended with code {code} and no figure:\n{words}")

    def close(self) -> None:
        for name, process in self.processes.items():
            if name.startswith("server") and process.poll() is None:
                process.terminate()
        for name, process in self.processes.items():
            try:
                process.wait(GRACE if name.startswith("server") else 0)
            except subprocess.TimeoutExpired:
                pass
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@contextmanager
def gang(
    argv: Sequence[str], strategy: str, workers: int, servers: int = 1, env: Mapping[str, str] | None = None
) -> Iterator[Gang]:
    """Workers run `python *argv`; everybody and everything is gone afterwards."""
    root = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    shared, folder = (
        Path(tempfile.mkdtemp(prefix="shoal-bench-", dir=root)),
        Path(tempfile.mkdtemp(prefix="shoal-bench-")),
    )
    made = _made(folder, shared, argv, strategy, workers, servers, dict(env or {}))
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(shared, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def _made(
    folder: Path, shared: Path, argv: Sequence[str], strategy: str, workers: int, servers: int, env: dict[str, str]
) -> Gang:
    ports = iter(free_ports(workers + servers + 1))
    members = [
        Member(f"{role}-{index}", role, index, "here", "127.0.0.1", {PORT: next(ports)}, index)
        for role, count in (("worker", workers), ("server", servers))
        for index in range(count)
    ]
    roster = folder / "roster.json"
    roster.write_text(Roster(1, "bench-1", members).to_json())
    common = {
        **{key: value for key, value in os.environ.items() if not key.startswith("SHOAL_")},
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(next(ports)),
        contract.SIZE: str(workers),
        contract.ROSTER: str(roster),
        contract.OUTPUTS: str(folder),
        contract.SHARED: str(shared),
        contract.SECRET: secrets.token_hex(16),
        contract.STRATEGY: strategy,
        **env,
    }
    run = {"worker": [sys.executable, *argv], "server": [sys.executable, "-m", "shoal.train.ps"]}
    return Gang(
        folder,
        {member.name: run[member.role] for member in members},
        {member.name: {**common, **_own(member)} for member in members},
    )


def _own(member: Member) -> dict[str, str]:
    own = {
        contract.ROLE: member.role,
        contract.INDEX: str(member.index),
        contract.MEMBER: member.name,
        contract.NODE: member.node,
        f"{contract.PORT_PREFIX}{PORT.upper()}": str(member.ports[PORT]),
    }
    return {**own, contract.RANK: str(member.index)} if member.role == "worker" else own
