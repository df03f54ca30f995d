"""Keeps jobs of different users apart on this machine: decides how, and makes ready what each shepherd may reach.

What belongs to a job is given to its operating-system user, the way there is opened for passing through, and nothing
else: the database, the token, chunks, logs and other jobs' folders stay the server's.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from shoal.contract import Task
from shoal.engine import bubblewrap, interpreters, offers
from shoal.engine.api import Gang
from shoal.engine.bubblewrap import View
from shoal.engine.folder import GangFolder
from shoal.engine.isolation import NOTHING, Around, InForce, Offers, Rules, choose
from shoal.engine.persons import Person, Persons
from shoal.errors import BadConfig, StartFailed
from shoal.home import Home, cache_folder

PASSAGE = 0o711  # others may pass through, but not look
PACKAGE = Path(__file__).resolve().parents[1]


class Apart:
    """One per engine. `people` counts the users there are; it is asked only while that decides something."""

    def __init__(self, home: Home, rules: Rules | None = None, people: Callable[[], int] = lambda: 1) -> None:
        self._home = home
        self._rules = rules or Rules()
        self._people = people
        self._persons = Persons(home.root / "uids.json", self._rules)
        self._lock = threading.Lock()
        self._offers: Offers | None = None
        self._decided: InForce | None = None

    def check(self) -> InForce:
        """Once, before any job comes: BadConfig for what was set and cannot be, also if it would matter only later."""
        for path in self._rules.visible:
            if self._holds_home(Path(path)):
                raise BadConfig(f"isolation.visible: {path} holds SHOAL_HOME, with everybody's files; name less")
        if os.geteuid() == 0:
            self._persons.check()
        return self.in_force()

    def in_force(self) -> InForce:
        """How jobs that start now are kept apart. BadConfig when the way that was asked for cannot be had."""
        with self._lock:
            if self._decided is None:
                people = self._people() if self._rules.mode == "auto" else 0
                found = choose(self._rules.mode, people, self._look)
                if self._rules.mode == "auto" and people < 2:
                    return found  # for now
                self._make_ready(found)
                self._decided = found
            return self._decided

    def surround(self, folder: GangFolder, task: Task, gang: Gang) -> Around:
        """Makes ready what the shepherd of one node may reach, and says what to put around it. Twice is harmless."""
        mode = self.in_force().mode
        if mode == "none":
            return NOTHING
        owner = gang.owner
        if not owner or Path(owner).name != owner or owner == "..":
            raise StartFailed(
                f"{owner!r} cannot be the owner of a gang: the name is a folder's; use letters and digits"
            )
        person = self._person(owner)
        own_home = self._people_home(owner, person)
        work = self._make_work(task, person)
        _give(folder.own, person)
        folder.path.chmod(PASSAGE)
        _give(folder.task_file(task.node), person)
        if mode == "user":
            return self._as_person(person, own_home)
        prefix = self._sandbox(folder, task.node, [folder.own, own_home, *work], gang.programs, person)
        return _around(person, owner, own_home, prefix)

    def cache(self, owner: str) -> Path:
        """Where environments are built: for all in one place, unless one could change what another runs."""
        return cache_folder() if self.in_force().mode == "none" else self._home.people / owner / "cache"

    def _look(self) -> Offers:
        if self._offers is None:
            self._offers = offers.look(self._home.root, self._rules.uids[0])
        return self._offers

    def _make_ready(self, found: InForce) -> None:
        if found.mode == "none":
            return
        self._home.people.mkdir(mode=PASSAGE, exist_ok=True)
        if found.mode == "user":
            for folder in (self._home.root, self._home.gangs, self._home.work, self._home.people):
                folder.chmod(PASSAGE)
            if self._home.config_file.exists():
                self._home.config_file.chmod(0o600)  # it may hold the database's password

    def _person(self, owner: str) -> Person | None:
        """None where the server cannot switch: the sandbox alone keeps apart then."""
        if os.geteuid() != 0:
            return None
        try:
            return self._persons.of(owner)
        except BadConfig as wrong:
            raise StartFailed(f"no operating-system user for {owner!r}: {wrong.message}") from wrong

    def _people_home(self, owner: str, person: Person | None) -> Path:
        folder = self._home.people / owner
        folder.mkdir(mode=0o700, exist_ok=True)
        _give(folder, person)
        return folder

    def _make_work(self, task: Task, person: Person | None) -> list[Path]:
        """The job's folder and the note beside it; a job that runs in place has its folder, and keeps it as it is."""
        work = Path(task.work)
        if not task.work or not work.is_relative_to(self._home.work):
            return [work] if task.work else []
        note = work.with_name(f".{work.name}.complete")
        work.mkdir(mode=0o700, exist_ok=True)
        note.touch(mode=0o600)
        _give(work, person)
        _give(note, person)
        return [work, note]

    def _as_person(self, person: Person | None, own_home: Path) -> Around:
        assert person is not None  # the machine offers this way to root only
        around = _around(person, person.name, Path(person.home or own_home), ())
        return replace(around, python=self._look().python)

    def _sandbox(
        self, folder: GangFolder, node: str, writes: list[Path], programs: Iterable[str], person: Person | None
    ) -> tuple[str, ...]:
        program = shutil.which(offers.PROGRAM)
        if program is None:
            raise StartFailed("bubblewrap is gone from this machine; install it again, or restart the server")
        hidden = tuple(dict.fromkeys(self._hidden()))
        wide = [path for path in writes if any(bubblewrap.is_below(one, [str(path.resolve())]) for one in hidden)]
        if wide:
            raise StartFailed(
                f"no job runs in place in {wide[0]}, which holds what sandboxes hide; take a folder in it"
            )
        tmp = folder.make_tmp(node, *((person.uid, person.gid) if person else ()))
        reads = [self._home.public, folder.path, PACKAGE, *map(Path, (*self._rules.visible, *bubblewrap.KEPT))]
        for interpreter in (sys.executable, shutil.which("python3") or ""):
            reads += interpreters.prefixes(interpreter)
        reads += [prefix for program in programs for prefix in interpreters.prefixes(program) if self._is_safe(prefix)]
        view = View(
            hidden=hidden,
            reads=tuple(_spots(reads, hidden)),
            writes=tuple(_spots(writes, hidden)),
            tmp=str(tmp.resolve()),
            devices=tuple(str(found) for name in bubblewrap.DEVICES for found in sorted(Path("/dev").glob(name))),
        )
        return bubblewrap.command(program, view, root=person is not None)

    def _is_safe(self, prefix: Path) -> bool:
        """Not where jobs write: one could put a link to another's folder there just before the server shows it."""
        written = [str(folder.resolve()) for folder in (self._home.work, self._home.people, self._home.gangs)]
        inside = any(bubblewrap.is_below(str(path), written) for path in (prefix, prefix.resolve()))
        return not inside and not self._holds_home(prefix)

    def _holds_home(self, folder: Path) -> bool:
        return self._home.root.resolve().is_relative_to(folder.resolve())

    def _hidden(self) -> Iterator[str]:
        for path in (*bubblewrap.HIDDEN, self._home.root, os.environ.get("HOME") or "/"):
            real = Path(path).resolve()
            if real.is_dir() and real != Path("/"):
                yield str(real)


def _around(person: Person | None, name: str, home: Path, prefix: tuple[str, ...]) -> Around:
    env = {"HOME": str(home), "USER": name, "LOGNAME": name, "TMPDIR": "/tmp"}
    if person is None:
        return Around(prefix, env=env)
    return Around(prefix, person.uid, person.gid, env=env)


def _spots(paths: Iterable[Path], hidden: tuple[str, ...]) -> Iterator[str]:
    """Where each must appear: where it really lies, and under a name of its own that would be hidden otherwise."""
    for path in paths:
        if not path.is_absolute() or not path.exists():
            continue
        real = path.resolve()
        yield str(real)
        if path != real and bubblewrap.is_below(str(path), hidden):
            yield str(path)


def _give(path: Path, person: Person | None) -> None:
    """Makes it his. A folder that was another's (the mode was changed since the last attempt) with all it holds."""
    if person is None:
        return
    about = path.lstat()
    if (about.st_uid, about.st_gid) == (person.uid, person.gid):
        return
    for folder, names, files in os.walk(path):
        for each in (Path(folder, name) for name in (*names, *files)):
            # A file with a second name may be another's, linked here to be given away.
            if each.is_dir() or each.lstat().st_nlink == 1:
                os.lchown(each, person.uid, person.gid)
    os.lchown(path, person.uid, person.gid)
