"""One rank: how it is started, what belongs to it, and how all of it is ended.

What belongs to a rank is more than its process: children in its group, daemons that left the group (the shepherd
adopts them when their parents end), and whatever is in its cgroup. A mark in the environment tells whose they are.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Collection, Dict, List, Optional

from shoal._lib import cgroup, process
from shoal.contract import MEMBER, Process
from shoal.shepherd.spawn import SpawnFailed, begin, spawn

_KILLED_INSIDE = 128 + signal.SIGKILL  # how podman and docker exit then


class Rank:
    """One incarnation of a member. Only the main thread may start and end it."""

    def __init__(self, what: Process, incarnation: int) -> None:
        self.what = what
        self.member = what.name
        self.incarnation = incarnation
        self.pid = 0
        self.path = ""  # the PATH it runs with
        self.status: Optional[int] = None  # as waitpid told it
        self.tail: Optional[str] = None  # the end of its output, once that has ended
        self.over_limit: Optional[str] = None  # what to say of a rank the watch had killed
        self.gone = False  # it, and all that belonged to it
        self.kill_at: Optional[float] = None  # monotonic: when what it left behind is killed
        self.close_at: Optional[float] = None  # monotonic: when its output is closed by force
        self._group: Optional[cgroup.Cgroup] = None

    @property
    def running(self) -> bool:
        return self.pid > 0 and self.status is None

    @property
    def watched_limit(self) -> Optional[int]:
        """Bytes, when nobody but us enforces them."""
        return None if self._group is not None and self._group.holds_memory else self.what.memory

    @property
    def group_folders(self) -> List[Path]:
        return self._group.folders if self._group is not None else []

    def begin(self, env: Dict[str, str], cwd: str, group_name: str) -> None:
        """Starts it, without waiting until it runs; SpawnFailed when it cannot be. `confirm` follows."""
        self.path = env.get("PATH", "")
        what = self.what
        self._group = cgroup.make(group_name, memory=what.memory, cpu=what.cpu, quota=what.cpu_quota)
        self._ear, self._mouth = os.pipe()
        self._again = partial(spawn, what.argv, env, cwd, self._mouth, session=what.session)
        try:
            doors = self._group.doors if self._group else ()
            self._birth = begin(what.argv, env, cwd, self._mouth, doors, what.session)
        except BaseException:
            self._abandon()
            raise

    def confirm(self) -> int:
        """The handle its output is read from, once it runs; SpawnFailed when it does not."""
        try:
            self.pid = self._confirmed()
        except BaseException:
            self._abandon()
            raise
        os.close(self._mouth)
        return self._ear

    def ask_to_end(self) -> None:
        """SIGTERM to its process group; one that was stopped is woken to hear it."""
        process.send_group(self.pid, signal.SIGTERM)
        process.send_group(self.pid, signal.SIGCONT)

    def kill(self, mains: Collection[int]) -> None:
        """SIGKILL to everything that belongs to it."""
        below = process.descendants(self.pid)
        process.send_group(self.pid, signal.SIGKILL)
        if self._group is not None:
            self._group.kill()
        for pid in {*below, *self.remains(mains, alone=False)}:
            process.send(pid, signal.SIGKILL)

    def remains(self, mains: Collection[int], alone: bool) -> List[int]:
        """What still lives of it besides its main process. `alone`: no other rank can own what bears no mark."""
        found = set(self._group.pids()) if self._group is not None else set()
        for child in process.children(os.getpid()):
            if child not in mains and self._owns(child, alone):
                found.update([child, *process.descendants(child)])
        return [pid for pid in found if pid not in mains and process.alive(pid)]

    def ended_by_limit(self) -> bool:
        """Whether the memory limit ended it, by the kernel's hand or by ours; of a container as far as one can tell."""
        if self.over_limit is None and self._was_killed_inside():
            self.over_limit = "its container was killed inside (exit code 137), most likely for memory"
        by_kernel = self._group is not None and self.status != 0 and self._group.oom_kills() > 0
        return by_kernel or self.over_limit is not None

    def remove_group(self) -> None:
        if self._group is not None:
            self._group.remove()
            self._group = None

    def _was_killed_inside(self) -> bool:
        """By then the container is gone, and nobody can be asked. Killed from here, its program ends by a signal."""
        if self.what.memory is None or os.waitstatus_to_exitcode(self.status or 0) != _KILLED_INSIDE:
            return False
        from shoal.shepherd.container import is_container  # here, because hardly any gang needs it

        return is_container(self.what.argv)

    def _confirmed(self) -> int:
        try:
            return self._birth.confirm()
        except SpawnFailed as failure:
            if failure.stage != "enter":
                raise
        # A group one can make but not enter (a threaded or foreign one): better without, and watched.
        self.remove_group()
        return self._again()

    def _abandon(self) -> None:
        os.close(self._ear)
        os.close(self._mouth)
        self.remove_group()

    def _owns(self, child: int, alone: bool) -> bool:
        about = process.stat(child)
        if about is None:
            return False
        mark = process.mark(child, MEMBER)
        return self.pid in (about.session, about.group) or mark == self.member or (alone and mark is None)
