"""Where things lie on the node: the gang's folder, the job's folder, inputs, roster, shared memory.

Several shepherds of one machine may share the job's folder. Whoever comes first fills it under the lock of a file
beside it, never inside, and writes into that file that the folder is whole.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Optional

from shoal.contract import GANG, GONE, INHERITED, MEMBER, START, Process, Task

_SHM = Path("/dev/shm")


class Place:
    """The paths of one task."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.folder = Path(task.folder)
        self.work = Path(task.work)
        self.lock = self._own("lock")
        self.drain_lock = self._own("drain.lock")
        self.done = self._own("done")
        self.killed = self.folder.parent / "killed"  # the engine has ended the gang: nobody starts any more
        self.log = self._own("log")
        self.events = self._own("events.jsonl")
        self.roster = self._own("roster.json")
        self.hostfile = self._own("hosts")
        self.shared_note = self._own("shared")  # holds the path of the shared-memory folder, for whoever cleans up
        self.groups_note = self._own("cgroups")  # likewise the folders of the ranks' cgroups
        self.environment_order = self._own("environment.json")  # what the process that builds is told
        self.spool = self.folder / "spool"
        self.inputs = self.folder / "inputs"
        self.outputs = self.work / "outputs"

    def write_roster(self, roster: Dict[str, Any]) -> None:
        """Whole or not at all: ranks read it at any time."""
        for path, content in ((self.hostfile, _hostfile(roster)), (self.roster, json.dumps(roster))):
            draft = path.with_suffix(".draft")
            draft.write_text(content)
            draft.replace(path)

    def environment(self, process: Process, machine: Dict[str, str], start: int = 0) -> Dict[str, str]:
        """What the rank wakes up with: a little of the machine's, then what was declared, with our paths filled in."""
        env = {name: machine[name] for name in INHERITED if name in machine}
        env.update({name: self._filled(value) for name, value in process.env.items()})
        env[GANG], env[MEMBER], env[START] = self._task.key, process.name, str(start)
        return env

    def shared(self) -> Path:
        """The attempt's shared-memory folder on this node, made when first asked for."""
        if self.shared_note.exists():
            return Path(self.shared_note.read_text())
        folder = _SHM / f"shoal-{self._task.key}-{self._task.node}"
        if not _own_folder(folder):
            folder = self._own("shm")
            folder.mkdir(mode=0o700, exist_ok=True)
        self.shared_note.write_text(str(folder))
        return folder

    def note_groups(self, folders: Iterable[Path]) -> None:
        """Remembers cgroups, so that they are taken away even if we are killed. A full disk costs only that."""
        with suppress(OSError), open(self.groups_note, "a") as file:
            file.writelines(f"{folder}\n" for folder in folders)

    def tidy(self) -> None:
        """Removes what must not outlive the attempt; harmless when called twice."""
        if self.groups_note.exists():
            for line in self.groups_note.read_text().splitlines():
                with suppress(OSError):  # gone already, or something in it cannot die yet
                    Path(line).rmdir()
        if self.shared_note.exists():
            _remove_tree(Path(self.shared_note.read_text()))
            self.shared_note.unlink()

    def _own(self, suffix: str) -> Path:
        return self.folder / f"{self._task.node}.{suffix}"

    def _filled(self, value: str) -> str:
        if value == "@roster":
            return str(self.roster)
        if value == "@hostfile":
            return str(self.hostfile)
        if value == "@work":
            return str(self.work)
        if value == "@shared":
            return str(self.shared())
        if value.startswith("@library"):
            return ":".join(self._in_library(path) for path in value.split(":"))
        if value in ("@inputs", "@outputs"):
            folder = self.inputs if value == "@inputs" else self.outputs
            folder.mkdir(parents=True, exist_ok=True)
            return str(folder)
        return value

    def _in_library(self, path: str) -> str:
        return self._task.library + path[len("@library") :] if path.startswith("@library") else path


def _hostfile(roster: Dict[str, Any]) -> str:
    """One line `address slots=N` for each node, where N workers are (all processes, in a gang that has none)."""
    up = [member for member in roster.get("members") or () if member.get("state") != GONE]
    count: Dict[str, int] = {}
    for member in [one for one in up if one.get("role") == "worker"] or up:
        count[member["address"]] = count.get(member["address"], 0) + 1
    return "".join(f"{address} slots={slots}\n" for address, slots in count.items())


def fill_once(folder: Path, fill: Callable[[], None]) -> None:
    """Runs `fill` unless the folder is whole already; another process doing the same is waited for."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    # One file for both: where the folder above is another user's, the engine has made it for us.
    with open(folder.with_name(f".{folder.name}.complete"), "a") as marker:
        fcntl.flock(marker, fcntl.LOCK_EX)
        if os.fstat(marker.fileno()).st_size == 0:
            fill()
            marker.write("whole\n")


def take_lock(path: Path) -> Optional[int]:
    """The handle that holds the lock until the process ends; None when another holds it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def _own_folder(folder: Path) -> bool:
    """Whether the folder is there, ours, and closed to others: /dev/shm is open to every user of the machine."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        about = folder.lstat()
    except OSError:
        return False
    return about.st_uid == os.getuid() and not folder.is_symlink() and about.st_mode & 0o077 == 0


def _remove_tree(folder: Path) -> None:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return
    except OSError:
        import shutil  # here, because it takes 10 ms and the folder is mostly empty

        shutil.rmtree(folder, ignore_errors=True)
