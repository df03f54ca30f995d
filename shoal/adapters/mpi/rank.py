"""A rank of an MPI job: waits for MPI's variables, runs the user's program with them, and ends as it ends.

The first worker of a node also runs mpirun's daemon there, and worker 0 mpirun itself; those stay until everybody is
done. They have sessions of their own: a stop is heard by the programs, not by mpirun, which would end them at once.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from shoal import contract
from shoal.adapters.mpi import mpirun
from shoal.adapters.mpi.place import BECOME, PORT, RUN, Place
from shoal.errors import ShoalError
from shoal.train.wire.frames import Meta
from shoal.train.wire.host import Answer, Host, Peer, listen

ABORTED = 1  # exit status of a rank that mpirun gave up before it began
FAREWELL = 2.0  # seconds in which a caller hears how what it waits for ended
GRACE = 5.0  # seconds for a program that mpirun has given up

_log = logging.getLogger("shoal.mpi")


class Rank:
    """One worker. `run` gives the exit status of the user's program, or ends this process as that was ended."""

    def __init__(self, variables: Mapping[str, str], program: Sequence[str]) -> None:
        self._variables = dict(variables)
        self._program = list(program)
        self._place = Place.read(variables)
        self._told: dict[str, str] | None = None  # by MPI
        self._given_up = False  # by mpirun
        self._stopping = False  # by Shoal
        self._moved = threading.Condition()
        self._child: subprocess.Popen[bytes] | None = None
        self._code: int | None = None
        self._mpirun: subprocess.Popen[bytes] | None = None
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._agents: set[int] = set()  # connections of those who wait for a daemon's end

    def run(self) -> int:
        found = mpirun.find(self._variables.get("PATH", os.defpath))
        signal.signal(signal.SIGTERM, self._hear_stop)
        with Host(self._place.secret, {BECOME: _Become(self), RUN: _Run(self)}, listener=self._bound()):
            if self._place.rank == 0:
                self._start_mpirun(found)
            if not self._await_variables():
                return self._give_up()
            code = self._run_program()
            self._report(code)
            self._await_relay()
            if code == 0:
                self._see_out()
        if code < 0:
            mpirun.end_by(-code)
        return code

    def become(self, variables: dict[str, str]) -> int:
        """Begins the program with these variables and returns when it has ended."""
        with self._moved:
            self._told = variables
            self._moved.notify_all()
            while self._code is None:
                self._moved.wait()
            return self._code

    def give_up(self) -> None:
        """The relay is gone: mpirun has ended the job. During a stop of Shoal's the programs keep their grace."""
        with self._moved:
            self._given_up = True
            child = self._child
            self._moved.notify_all()
        if child is not None and self._code is None and not self._stopping:
            child.terminate()
            threading.Timer(GRACE, child.kill).start()

    def daemon(self, agent: int, command: str) -> int:
        """Runs it for an agent, until it ends."""
        process = self._spawn(["/bin/sh", "-c", command])
        with self._moved:
            self._agents.add(agent)
            self._daemons.append(process)
        return process.wait()

    def forget(self, agent: int) -> None:
        with self._moved:
            self._agents.discard(agent)
            self._moved.notify_all()

    def _start_mpirun(self, found: str) -> None:
        with tempfile.NamedTemporaryFile("w", prefix="shoal-mpi-", delete=False) as file:
            hosts = Path(file.name)
        mpirun.write_hosts(self._place, hosts)
        self._hosts = hosts
        self._mpirun = self._spawn(mpirun.command(self._place, found, hosts, sys.executable))
        threading.Thread(target=self._watch_mpirun, daemon=True).start()

    def _watch_mpirun(self) -> None:
        assert self._mpirun is not None
        self._mpirun.wait()
        self._hosts.unlink(missing_ok=True)
        with self._moved:
            self._given_up = self._given_up or self._told is None
            self._moved.notify_all()

    def _await_variables(self) -> bool:
        with self._moved:
            while self._told is None and not self._given_up and not self._stopping:
                self._moved.wait(1.0)  # so that a signal is heard
            return self._told is not None

    def _run_program(self) -> int:
        assert self._told is not None
        try:
            self._child = subprocess.Popen(self._program, env={**self._segments(), **self._variables, **self._told})
        except OSError as missing:
            print(f"{self._program[0]} cannot be started: {missing.strerror}", file=sys.stderr)
            return 127
        if self._stopping:
            self._child.terminate()
        return self._child.wait()

    def _segments(self) -> dict[str, str]:
        """Shared memory lies in the attempt's own folder, which is removed with it. Elsewhere its names hold the host's
        and the rank's number on it, and would clash where one machine is several nodes."""
        shared = self._variables.get(contract.SHARED)
        return dict.fromkeys(mpirun.SEGMENTS, shared) if shared else {}

    def _report(self, code: int) -> None:
        with self._moved:
            self._code = code
            self._moved.notify_all()

    def _await_relay(self) -> None:
        """It takes the status to mpirun, and leaves."""
        with self._moved:
            self._moved.wait_for(lambda: self._given_up, FAREWELL)

    def _see_out(self) -> None:
        """What serves other ranks stays until they are done too."""
        if self._mpirun is not None:
            self._mpirun.wait()
        for daemon in self._daemons:
            daemon.wait()
        with self._moved:
            self._moved.wait_for(lambda: not self._agents, FAREWELL)

    def _give_up(self) -> int:
        if self._stopping:
            return 128 + signal.SIGTERM
        _log.warning("mpirun ended before %s could begin; what it said is in the log of worker-0", self._place.name)
        code = self._mpirun.poll() if self._mpirun is not None else None
        return code or ABORTED

    def _spawn(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(words, env=self._variables, stdin=subprocess.DEVNULL, start_new_session=True)

    def _hear_stop(self, _number: int, _frame: object) -> None:
        """The program, in the same process group, hears it too; this process stays to say how it ended."""
        self._stopping = True

    def _bound(self) -> socket.socket:
        own = self._place.own
        try:
            return listen(own.address, own.ports[PORT])
        except OSError as failed:
            if failed.errno == errno.EADDRNOTAVAIL:
                return listen("", own.ports[PORT])  # a translated address is none of this machine's
            raise ShoalError(f"{own.name} cannot listen at {own.address}:{own.ports[PORT]}: {failed}") from failed


class _Become:
    def __init__(self, rank: Rank) -> None:
        self._rank = rank

    def handle(self, peer: Peer, meta: Meta, payload: memoryview) -> Answer:
        return {"kind": "ended", "code": self._rank.become(dict(meta["variables"]))}, ()

    def buffer(self, peer: Peer, meta: Meta, size: int) -> memoryview | None:
        return None

    def left(self, peer: Peer) -> None:
        self._rank.give_up()


class _Run:
    def __init__(self, rank: Rank) -> None:
        self._rank = rank

    def handle(self, peer: Peer, meta: Meta, payload: memoryview) -> Answer:
        return {"kind": "ended", "code": self._rank.daemon(peer.number, str(meta["command"]))}, ()

    def buffer(self, peer: Peer, meta: Meta, size: int) -> memoryview | None:
        return None

    def left(self, peer: Peer) -> None:
        """The daemon is not ended here: it ends by itself when mpirun is gone."""
        self._rank.forget(peer.number)
