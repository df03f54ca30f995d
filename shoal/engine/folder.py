"""The files of one gang on this machine: its tasks, the locks its shepherds hold, and what has been done to it.

    gangs/<key>/nodes          the handle: names of the nodes, written before anything is started
                <node>.json    the task, mode 0600
                <node>.around  what was put around the shepherd, for whoever has to send what it leaves
                <node>.err     what the shepherd itself printed
                <node>.drain   pid of the process that sends what a dead shepherd left
                killed         the gang was killed and is never to be started again
                tmp/<node>/    the shepherd's /tmp, where it is in a sandbox
                shepherd/      the shepherds' own:
                <node>.lock    held (flock) by the shepherd for as long as it lives
                <node>.events.jsonl  what became of the ranks it started
                <node>.done    the shepherd has sent everything
                <node>.shared  path of the gang's shared-memory folder on that node, as the shepherd noted it

The engine writes nothing below `shepherd/`, and follows no link there: the job may be another user's, and a link of his
would lead the server to files he cannot reach himself. A test of a lock holds it for an instant; a shepherd that finds
it held tries again for half a second before it believes that another is at work.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from shoal.contract import Task
from shoal.engine.isolation import NOTHING, Around
from shoal.errors import StartFailed
from shoal.home import write_private

Lock = Literal["absent", "held", "free"]

_NOTE = 4096  # bytes of a note that are read at most


class GangFolder:
    """One gang's folder. Reading one that does not exist is no error: nothing is there."""

    def __init__(self, gangs: Path, key: str) -> None:
        if not key or Path(key).name != key or key.startswith("."):
            raise StartFailed(f"{key!r} cannot be the key of a gang: it names a folder; use letters, digits and '-'")
        self.key = key
        self.path = gangs / key
        self.own = self.path / "shepherd"  # the shepherds' to write

    def exists(self) -> bool:
        return self.path.is_dir()

    def create(self, handle: str) -> None:
        for folder in (self.path, self.own):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.handle() != handle:
            write_private(self._file("nodes"), handle)

    def handle(self) -> str:
        """What `create` was told; empty for a gang that is not there."""
        return _read(self._file("nodes"))

    def task_file(self, node: str) -> Path:
        return self._file(f"{node}.json")

    def write_task(self, task: Task) -> Path:
        """The task as its shepherd reads it. The gang's folder is the engine's to say, whatever the task had."""
        path = self.task_file(task.node)
        write_private(path, replace(task, folder=str(self.own)).to_json())
        return path

    def write_around(self, node: str, around: Around) -> None:
        write_private(self._file(f"{node}.around"), around.to_json())

    def around(self, node: str) -> Around:
        text = _read(self._file(f"{node}.around"))
        return Around.from_json(text) if text else NOTHING

    def make_tmp(self, node: str, uid: int | None = None, gid: int | None = None) -> Path:
        """An empty folder to be /tmp in a sandbox: never the one of an earlier process, which may have left links.

        Everyone inside may pass through it, nobody outside comes as far: the folder above is closed.
        """
        folder = self._file("tmp") / node
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir()
        folder.chmod(0o755)
        if uid is not None and gid is not None:
            os.chown(folder, uid, gid)
        return folder

    @contextmanager
    def errors(self, node: str) -> Iterator[int]:
        """A descriptor for what the shepherd itself prints."""
        descriptor = os.open(self._file(f"{node}.err"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def lock(self, node: str) -> Lock:
        """Whether a shepherd holds its lock, has let go of it (or is about to take it), or never came to it."""
        try:
            descriptor = _open(self.own / f"{node}.lock")
        except FileNotFoundError:
            return "absent"
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return "held"
        finally:
            os.close(descriptor)
        return "free"

    def had_ranks(self, node: str) -> bool:
        """Whether the shepherd has started any process of the user's, so that it may have left something to send."""
        try:
            return (self.own / f"{node}.events.jsonl").lstat().st_size > 0
        except FileNotFoundError:
            return False

    def is_done(self, node: str) -> bool:
        return os.path.lexists(self.own / f"{node}.done")

    def mark_killed(self) -> None:
        if self.exists():
            with suppress(OSError):  # a full disk must not save a gang from being killed, nor one cleaned meanwhile
                self._file("killed").touch()

    def is_killed(self) -> bool:
        return self._file("killed").exists()

    def note_drain(self, node: str, pid: int) -> None:
        self._file(f"{node}.drain").write_text(str(pid))

    def drain_pid(self, node: str) -> int | None:
        """The pid of the process that sends, or once sent, what the shepherd left; None when there never was one."""
        text = _read(self._file(f"{node}.drain"))
        return int(text) if text.isdigit() else None

    def remove_shared(self, node: str) -> None:
        """The shared memory a dead shepherd could not remove. Only a folder that is named after the gang is."""
        noted = Path(_read_note(self.own / f"{node}.shared"))
        if noted.name == f"shoal-{self.key}-{node}":
            shutil.rmtree(noted, ignore_errors=True)  # most often the shepherd has removed it

    def remove(self) -> None:
        while self.exists():
            with suppress(FileNotFoundError):  # another thread removes the same folder: go on until it is away
                shutil.rmtree(self.path)

    def _file(self, name: str) -> Path:
        return self.path / name


def _open(path: Path) -> int:
    """To read. Neither a link nor a pipe that someone put there in its place leads astray or holds us up."""
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _read_note(path: Path) -> str:
    """A line that a shepherd wrote; empty when there is none."""
    try:
        descriptor = _open(path)
    except OSError:
        return ""
    with open(descriptor, "rb") as file:
        return os.fsdecode(file.read(_NOTE)).strip()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""
