"""The local engine: gangs on this machine, which may present itself as several nodes.

A shepherd is a process in a session of its own, so it outlives the server. That it lives is said by the lock it holds;
that it is ours to kill, by the gang's mark in its environment. Both are read from the machine each time, so that the
engine of the next server takes up where this one was killed. What keeps it from other users' jobs is put around it when
it starts (`apart`) and is noted, so that the same is around whoever sends what it leaves.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal import contract
from shoal._lib import process, pyz
from shoal.contract import Task
from shoal.engine.apart import PACKAGE, Apart
from shoal.engine.api import Can, Gang, Liveness, Sight
from shoal.engine.folder import GangFolder, Lock
from shoal.engine.isolation import Around
from shoal.engine.nodes import NAME, present
from shoal.errors import StartFailed
from shoal.home import Home, make_readable
from shoal.job.nodes import Node

DOUBT = 1.0  # seconds a free lock may belong to a shepherd that an earlier server started and that is about to take it
STARTING = 30.0  # seconds a shepherd may take until it holds its lock; a machine in distress starts nothing faster
DYING = 5.0  # seconds between SIGKILL and the end of a process that is not waiting for a broken disk
DRAINING = 60.0  # seconds what a dead shepherd left may take to be sent; it lies on this machine, as the server does
SHEPHERD = ("shoal.shepherd", "shoal.contract", "shoal.catalogue", "shoal.errors", "shoal._lib")
SHEPHERD_MAIN = "shoal.shepherd.__main__:main"
DRAIN = "SHOAL_DRAIN"  # marks a process that sends what a dead shepherd left: it is no part of the gang any more

Spot = tuple[str, str]  # (key, node)


@dataclass(frozen=True, slots=True)
class _Child:
    """A shepherd this process started."""

    process: subprocess.Popen[bytes]
    born: float  # monotonic

    @property
    def running(self) -> bool:
        return self.process.poll() is None


class LocalEngine:
    """Gangs on this machine. The arguments are what each node is to have; see `nodes.present`."""

    name = NAME

    def __init__(
        self,
        home: Home,
        *,
        nodes: int = 1,
        cpus: float | None = None,
        memory: int | None = None,
        gpus: int | None = None,
        shares: int | None = None,
        labels: Mapping[str, str] | None = None,
        apart: Apart | None = None,
    ) -> None:
        home.create()
        self._apart = apart or Apart(home)
        self.can = Can(shared_folder=True, pretend=nodes > 1 or gpus is not None)
        self._nodes = present(nodes, cpus=cpus, memory=memory, gpus=gpus, shares=shares, labels=labels)
        self._home = home
        self._identity = home.identity()
        self._environment = {name: value for name, value in os.environ.items() if _is_inherited(name)}
        self._lock = threading.Lock()  # around starting, and around the tables below
        self._children: dict[Spot, _Child] = {}
        self._drains: dict[Spot, subprocess.Popen[bytes]] = {}
        self._drain_seen: dict[Spot, float] = {}
        self._first_seen: dict[Spot, float] = {}  # of nodes whose shepherd an earlier server may just have started
        self._archive: Path | None = None

    def nodes(self) -> tuple[Node, ...]:
        return self._nodes

    def start(self, gang: Gang) -> str:
        folder = self._folder(gang.key)
        handle = self._handle(gang.nodes)
        with self._lock:
            if folder.is_killed():
                return handle
            try:
                folder.create(handle)
                for task in gang.tasks:
                    self._start_one(folder, task, gang)
            except OSError as error:
                self._undo(folder)
                raise StartFailed(
                    f"gang {gang.key} could not be started: {error}; see that the disk under {self._home.root} has "
                    f"room and that this user may start more processes, then submit again"
                ) from error
            except StartFailed:
                self._undo(folder)
                raise
        return handle

    def poll(self, handles: Mapping[str, str]) -> Mapping[str, Liveness]:
        self._reap()
        return {key: self._look(key, handle) for key, handle in handles.items()}

    def kill(self, key: str, handle: str = "") -> bool:
        if self._is_foreign(handle):
            return False
        folder = self._folder(key)
        with self._lock:  # a start under way is finished first, and is then swept up whole
            folder.mark_killed()
        self._kill_children(key)
        if not _sweep(key):
            return False
        nodes = _names(handle or folder.handle())
        return self._drain(folder, nodes) and not self._is_draining(folder, nodes)

    def clean(self, key: str, handle: str = "") -> bool:
        if self._is_foreign(handle):
            return False
        folder = self._folder(key)
        self._reap()
        nodes = _names(handle or folder.handle())
        if any(self._sight(folder, node) != "gone" for node in nodes):
            return False
        if not all(folder.is_done(node) for node in nodes) and not (_sweep(key) and self._drain(folder, nodes)):
            return False  # a shepherd left without a word: so may have what it watched, and what it had to send
        if self._is_draining(folder, nodes):
            return False
        for node in nodes:
            folder.remove_shared(node)
        folder.remove()
        self._forget(key)
        return True

    def leftovers(self) -> tuple[str, ...]:
        with os.scandir(self._home.gangs) as found:
            return tuple(sorted(entry.name for entry in found if entry.is_dir() and not entry.name.startswith(".")))

    def close(self) -> None:
        with self._lock:
            for child in [*(child.process for child in self._children.values()), *self._drains.values()]:
                # They are to outlive us: without a return code the object would warn of that when it goes away.
                child.returncode = child.poll() or 0
            self._children.clear()
            self._drains.clear()

    def _folder(self, key: str) -> GangFolder:
        return GangFolder(self._home.gangs, key)

    def _start_one(self, folder: GangFolder, task: Task, gang: Gang) -> None:
        """Nothing for a node that had its shepherd. One that an earlier server started a moment ago and that does not
        hold its lock yet gets a second; whichever takes the lock stays, the other goes."""
        spot = (folder.key, task.node)
        if spot in self._children or folder.lock(task.node) != "absent":
            return
        cache = self._apart.cache(gang.owner)
        file = folder.write_task(replace(task, library=str(self._library()), cache=str(cache)))
        around = self._apart.surround(folder, task, gang)
        folder.write_around(task.node, around)
        started = self._spawn(folder, task.node, around, [str(file)], {contract.GANG: folder.key})
        self._children[spot] = _Child(started, time.monotonic())

    def _spawn(
        self, folder: GangFolder, node: str, around: Around, arguments: list[str], mark: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        shepherd = [around.python or sys.executable, "-I", "-S", str(self._shepherd())]
        with folder.errors(node) as errors:
            return subprocess.Popen(
                [*around.prefix, *shepherd, *around.arguments, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                cwd=folder.path,
                env={**self._environment, **around.env, **mark},
                start_new_session=True,
                **around.switch,
            )

    def _shepherd(self) -> Path:
        """The shepherd as one file, made on first use and again should someone have tidied it away."""
        if self._archive is None or not self._archive.exists():
            self._archive = pyz.build(self._home.public / "shepherd.pyz", SHEPHERD, main=SHEPHERD_MAIN)
            self._archive.chmod(0o644)
        return self._archive

    def _library(self) -> Path:
        """A folder that holds this package alone, for interpreters that do not have it."""
        folder = self._home.public / "library"
        link = folder / "shoal"
        if not (link.is_symlink() and link.readlink() == PACKAGE):
            make_readable(folder)
            draft = folder / f".shoal.{os.getpid()}"
            draft.unlink(missing_ok=True)
            draft.symlink_to(PACKAGE)
            draft.replace(link)
        return folder

    def _undo(self, folder: GangFolder) -> None:
        """A gang or nothing: ends the shepherds that did start. The caller holds the lock."""
        for spot in [spot for spot in self._children if spot[0] == folder.key]:
            child = self._children.pop(spot).process
            child.kill()
            child.wait()
        process.sweep(contract.GANG, folder.key)
        folder.remove()

    def _kill_children(self, key: str) -> None:
        """By their numbers, which are ours to know: in the instant after exec a process does not show its mark yet."""
        with self._lock:
            own = [child.process for spot, child in self._children.items() if spot[0] == key]
        for child in own:
            child.kill()
        for child in own:
            with suppress(subprocess.TimeoutExpired):  # one that cannot die yet is found by the sweep
                child.wait(DYING)

    def _handle(self, nodes: tuple[str, ...]) -> str:
        """The nodes, and whose home the gang lies in: servers that share a database do not share processes."""
        return f"{','.join(nodes)}@{self._identity}"

    def _is_foreign(self, handle: str) -> bool:
        return bool(handle) and handle.partition("@")[2] != self._identity

    def _look(self, key: str, handle: str) -> Liveness:
        if self._is_foreign(handle):
            return Liveness(dict.fromkeys(_names(handle), "unknown"))
        folder = self._folder(key)
        if not folder.exists():
            return Liveness(dict.fromkeys(_names(handle), "gone"))
        return Liveness({node: self._sight(folder, node) for node in _names(handle or folder.handle())})

    def _sight(self, folder: GangFolder, node: str) -> Sight:
        try:
            lock = folder.lock(node)
        except OSError:
            return "unknown"
        if lock == "held":
            return "alive"
        if folder.is_killed() or folder.is_done(node) or not folder.exists():
            return "gone"
        return self._sight_unlocked(lock, (folder.key, node))

    def _sight_unlocked(self, lock: Lock, spot: Spot) -> Sight:
        """A shepherd without its lock: it has ended, or has not come to it yet."""
        now = time.monotonic()
        child = self._children.get(spot)
        if child is not None:
            return "alive" if child.running and now - child.born < STARTING else "gone"
        waited = now - self._first_seen.setdefault(spot, now)
        if lock == "absent":
            return "alive" if waited < STARTING else "gone"
        return "unknown" if waited < DOUBT else "gone"

    def _drain(self, folder: GangFolder, nodes: list[str]) -> bool:
        """Has what dead shepherds could not send any more sent, without waiting for it; False to be asked again."""
        try:
            with self._lock:
                for node in nodes:
                    self._drain_one(folder, node)
        except OSError:
            return False  # a full disk, or no process to be had: what is to be sent still lies there
        return True

    def _drain_one(self, folder: GangFolder, node: str) -> None:
        """Once per shepherd; should two servers try, the shepherd's own lock lets one through."""
        if folder.is_done(node) or not folder.had_ranks(node) or folder.drain_pid(node) is not None:
            return
        around = folder.around(node)
        if around.prefix:
            folder.make_tmp(node, around.uid, around.gid)
        task = str(folder.task_file(node))
        started = self._spawn(folder, node, around, ["--drain", task], {DRAIN: folder.key})
        self._drains[folder.key, node] = started
        folder.note_drain(node, started.pid)

    def _is_draining(self, folder: GangFolder, nodes: list[str]) -> bool:
        """Whether something is still being sent, by ours or by an earlier server's; what takes too long is ended."""
        left = False
        for node in nodes:
            pid = self._drain_pid(folder, node)
            if pid is None:
                continue
            now = time.monotonic()
            if now - self._drain_seen.setdefault((folder.key, node), now) < DRAINING:
                left = True
            else:
                for each in (pid, *process.descendants(pid)):  # in a sandbox the one that sends is below
                    process.send(each, signal.SIGKILL)
        return left

    def _drain_pid(self, folder: GangFolder, node: str) -> int | None:
        own = self._drains.get((folder.key, node))
        if own is not None:
            return own.pid if own.poll() is None else None
        pid = folder.drain_pid(node)
        return pid if pid is not None and process.mark(pid, DRAIN) == folder.key else None

    def _forget(self, key: str) -> None:
        tables: tuple[dict[Spot, Any], ...] = (self._children, self._drains, self._drain_seen, self._first_seen)
        with self._lock:
            for table in tables:
                for spot in [spot for spot in table if spot[0] == key]:
                    del table[spot]

    def _reap(self) -> None:
        """Takes the exit status of every child that has one, so that none stays behind as a zombie."""
        with self._lock:
            for child in [*(child.process for child in self._children.values()), *self._drains.values()]:
                child.poll()


def _is_inherited(name: str) -> bool:
    """What a shepherd has of the server's environment: what its ranks will, and what building environments needs."""
    building = name.startswith("PIP_") or name.lower() in ("http_proxy", "https_proxy", "no_proxy", "ssl_cert_file")
    return name in contract.INHERITED or building


def _names(handle: str) -> list[str]:
    nodes = handle.partition("@")[0]
    return nodes.split(",") if nodes else []


def _sweep(key: str) -> bool:
    """Ends everything that carries the gang's mark; True when nothing is left. Costs one look when nothing was.

    Shepherds first, so that they have no time to make sense of their ranks dying: they carry the mark but no member's
    name. A number is only hit while its process still says so.
    """
    found = process.marked(contract.GANG, key)
    for pid in found:
        if process.mark(pid, contract.MEMBER) is None and process.mark(pid, contract.GANG) == key:
            process.send(pid, signal.SIGKILL)
    if found:
        process.sweep(contract.GANG, key)
    return not found or not process.marked(contract.GANG, key)
