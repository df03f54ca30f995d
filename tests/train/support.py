"""A gang of real processes on this machine, told of each other as a Shoal job would tell them.

`run_world` starts workers with a script and servers with `python -m shoal.train.ps`, waits for the workers, ends the
servers and collects what everybody said. "Nodes" are names in the roster with a shared-memory folder each, so that
members of two nodes must talk over TCP. `open_world` gives the same in hand, to kill, freeze and restart members.
"""

from __future__ import annotations

import atexit
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from shoal import contract
from shoal._lib.ports import free_ports
from shoal.contract import Member, Roster
from shoal.strategy import parse
from shoal.train.world import PORT, SERVER, WORKER

REPOSITORY = Path(__file__).parents[2]
PAUSE = 0.02  # seconds between two looks
PATIENCE = 10.0  # seconds a server has to end after SIGTERM


class Stuck(AssertionError):
    """Somebody did not end in time. The message holds the stacks of all that were left."""


@dataclass(frozen=True)
class Result:
    """What a gang left behind. A code is negative for a signal, as subprocess has it."""

    stdout: dict[str, str]
    stderr: dict[str, str]
    returncodes: dict[str, int]
    outputs: Path

    @property
    def ok(self) -> bool:
        return all(code == 0 for name, code in self.returncodes.items() if name.startswith(WORKER))

    def check(self) -> Result:
        """Itself, when every worker ended with 0; else fails with everything that was said."""
        assert self.ok, self.told()
        return self

    def told(self) -> str:
        """All codes and the end of all outputs, for a message."""
        parts = [str(self.returncodes)]
        for name in self.stdout:
            parts.append(f"--- {name} stdout\n{self.stdout[name][-3000:]}")
            parts.append(f"--- {name} stderr\n{self.stderr[name][-6000:]}")
        return "\n".join(parts)

    def lines(self, name: str, start: str = "") -> list[str]:
        """The lines of a member's stdout that begin so."""
        return [line for line in self.stdout[name].splitlines() if line.startswith(start)]


@dataclass
class Running:
    """A gang that runs. Members are known by name: worker-0, server-1."""

    folder: Path
    roster: Roster
    commands: dict[str, list[str]]
    variables: dict[str, dict[str, str]]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def outputs(self) -> Path:
        return self.folder / "outputs"

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """Starts (or restarts) the member; a second start appends to its output."""
        out, err = self._file(name, "out"), self._file(name, "err")
        with open(out, "ab") as stdout, open(err, "ab") as stderr:
            self.processes[name] = subprocess.Popen(
                self.commands[name],
                env=self.variables[name],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        return self.processes[name]

    def pid(self, name: str) -> int:
        return self.processes[name].pid

    def signal(self, name: str, number: int) -> None:
        """To the member alone, not to its children."""
        self.processes[name].send_signal(number)

    def kill(self, name: str) -> None:
        """SIGKILL to the member and all its children, and waits for its end."""
        self._kill_group(name, signal.SIGKILL)
        self.processes[name].wait(PATIENCE)

    def said(self, name: str, stream: str = "out") -> str:
        return self._file(name, stream).read_text(errors="replace") if self._file(name, stream).exists() else ""

    def wait_for(self, name: str, pattern: str, timeout: float = 60.0, stream: str = "out") -> re.Match[str]:
        """Until the member has printed what matches; Stuck when it ended or the time is over."""
        end = time.monotonic() + timeout
        while True:
            over = self.processes[name].poll() is not None or time.monotonic() > end
            found = re.search(pattern, self.said(name, stream), re.MULTILINE)
            if found:
                return found
            if over:
                raise Stuck(f"{name} did not say {pattern!r}\n{self.result().told()}")
            time.sleep(PAUSE)

    def wait(self, names: Sequence[str] | None = None, timeout: float = 60.0) -> None:
        """Until the workers (or those named) have ended; Stuck with everybody's stacks otherwise."""
        waited = [name for name in self.processes if name.startswith(WORKER)] if names is None else names
        end = time.monotonic() + timeout
        for name in waited:
            try:
                self.processes[name].wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._dump()
                raise Stuck(f"{name} did not end within {timeout:g} s\n{self.result().told()}") from None

    def result(self) -> Result:
        names = list(self.processes)
        return Result(
            {name: self.said(name) for name in names},
            {name: self.said(name, "err") for name in names},
            {name: code for name in names if (code := self.processes[name].poll()) is not None},
            self.outputs,
        )

    def close(self) -> None:
        """Ends everybody, servers in good order."""
        servers = [name for name, process in self.processes.items() if name.startswith(SERVER) and _alive(process)]
        for name in servers:
            with suppress(ProcessLookupError):
                self.signal(name, signal.SIGTERM)
        for name in servers:
            with suppress(subprocess.TimeoutExpired):
                self.processes[name].wait(PATIENCE)
        for name, process in self.processes.items():
            self._kill_group(name, signal.SIGKILL)
            process.wait(PATIENCE)

    def _dump(self) -> None:
        """faulthandler answers SIGABRT with the stacks of all threads, and ends."""
        for process in self.processes.values():
            if _alive(process):
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGABRT)
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)

    def _kill_group(self, name: str, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.processes[name].pid, number)

    def _file(self, name: str, stream: str) -> Path:
        return self.folder / f"{name}.{stream}"


def run_world(
    script: str,
    workers: int = 2,
    servers: int | None = None,
    strategy: str | None = None,
    nodes: int = 1,
    env: Mapping[str, str] | None = None,
    timeout: float = 60.0,
    during: Callable[[Running], None] | None = None,
    folder: Path | None = None,
    args: Sequence[str] = (),
    python: str = sys.executable,
) -> Result:
    """Runs the script as `workers` processes until they have ended. `servers` defaults to what the strategy needs.

    `during` is called once while they run: kill and wait there. A `folder` given twice keeps outputs between runs.
    """
    with open_world(script, workers, servers, strategy, nodes, env, folder, args, python) as world:
        for name in world.commands:
            world.start(name)
        if during:
            during(world)
        world.wait(timeout=timeout)
        world.close()
        return world.result()


@contextmanager
def open_world(
    script: str,
    workers: int = 2,
    servers: int | None = None,
    strategy: str | None = None,
    nodes: int = 1,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
    args: Sequence[str] = (),
    python: str = sys.executable,
) -> Iterator[Running]:
    """A gang with nobody started yet; everybody and everything is gone at the end, except a `folder` given."""
    if servers is None:
        servers = 1 if strategy and parse(strategy).kind.servers else 0
    shared = Path(tempfile.mkdtemp(prefix="shoal-test-", dir=_shared_root()))
    own = folder or Path(tempfile.mkdtemp(prefix="shoal-world-"))
    if folder is None:
        atexit.register(shutil.rmtree, own, ignore_errors=True)  # the outputs are read after the gang has ended
    own.mkdir(parents=True, exist_ok=True)
    for name in own.glob("*.out"), own.glob("*.err"):
        for old in name:
            old.unlink()
    (own / "outputs").mkdir(exist_ok=True)
    (own / "script.py").write_text(textwrap.dedent(script))
    running = _gang(
        own, shared, workers, servers, strategy, nodes, dict(env or {}), [python, str(own / "script.py"), *args]
    )
    try:
        yield running
    finally:
        running.close()
        shutil.rmtree(shared, ignore_errors=True)


def _gang(
    folder: Path,
    shared: Path,
    workers: int,
    servers: int,
    strategy: str | None,
    nodes: int,
    extra: Mapping[str, str],
    script: list[str],
) -> Running:
    roster = _roster(workers, servers, nodes)
    path = folder / "roster.json"
    path.write_text(roster.to_json())
    for number in range(nodes):
        (shared / f"node-{number}").mkdir(mode=0o700)
    common = _common(folder, roster, path, strategy)
    serve = [sys.executable, "-m", "shoal.train.ps"]
    return Running(
        folder=folder,
        roster=roster,
        commands={member.name: script if member.role == WORKER else serve for member in roster.members},
        variables={member.name: {**common, **_own(roster, member, shared), **extra} for member in roster.members},
    )


def _roster(workers: int, servers: int, nodes: int) -> Roster:
    """Workers in blocks over the nodes, servers in turn."""
    ports = iter(free_ports(workers + servers + 1))
    members, on_node = [], [0] * nodes
    for index in range(workers):
        node = index * nodes // workers
        own = {PORT: next(ports)} | ({"master": next(ports)} if index == 0 else {})
        members.append(Member(f"worker-{index}", WORKER, index, f"node-{node}", "127.0.0.1", own, on_node[node]))
        on_node[node] += 1
    for index in range(servers):
        node = f"node-{index % nodes}"
        members.append(Member(f"server-{index}", SERVER, index, node, "127.0.0.1", {PORT: next(ports)}))
    return Roster(1, f"test-{secrets.token_hex(4)}", members)  # each run is an attempt of its own


def _common(folder: Path, roster: Roster, path: Path, strategy: str | None) -> dict[str, str]:
    variables = {name: os.environ[name] for name in contract.INHERITED if name in os.environ}
    variables |= {
        "PYTHONPATH": str(REPOSITORY),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(roster.find("worker-0").ports["master"]),
        contract.GANG: roster.key,
        contract.JOB: "test",
        contract.ATTEMPT: "1",
        contract.SIZE: str(len(roster.role(WORKER))),
        contract.ROSTER: str(path),
        contract.OUTPUTS: str(folder / "outputs"),
        contract.SECRET: secrets.token_hex(16),
    }
    return variables | ({contract.STRATEGY: strategy} if strategy else {})


def _own(roster: Roster, member: Member, shared: Path) -> dict[str, str]:
    variables = {
        contract.ROLE: member.role,
        contract.INDEX: str(member.index),
        contract.MEMBER: member.name,
        contract.NODE: member.node,
        contract.SHARED: str(shared / member.node),
        **{contract.PORT_PREFIX + name.upper(): str(port) for name, port in member.ports.items()},
    }
    if member.role == WORKER:
        beside = [one for one in roster.role(WORKER) if one.node == member.node]
        variables |= {
            contract.RANK: str(member.index),
            "RANK": str(member.index),
            "WORLD_SIZE": str(len(roster.role(WORKER))),
            "LOCAL_RANK": str(member.local),
            "LOCAL_WORLD_SIZE": str(len(beside)),
        }
    return variables


def _shared_root() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _alive(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is None


def torchrun(
    script: str, folder: Path, workers: int = 2, env: Mapping[str, str] | None = None, timeout: float = 60.0
) -> subprocess.CompletedProcess[str]:
    """The script under torchrun, as somebody without Shoal would start it: no roster, no secret, no servers."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "script.py").write_text(textwrap.dedent(script))
    variables = {name: os.environ[name] for name in contract.INHERITED if name in os.environ}
    variables |= {"PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
    process = subprocess.Popen(
        [*command, str(folder / "script.py")],
        env={**variables, "OMP_NUM_THREADS": "1", **(env or {})},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()  # its workers are in sessions of their own: only it can end them
        out, err = process.communicate(timeout=60)
        raise Stuck(f"torchrun did not end within {timeout:g} s\n{out}\n{err}") from None
    return subprocess.CompletedProcess(command, process.returncode, out, err)
