"""Which operating-system user stands for which of Shoal's: by a table, by name, or by a number that is handed out.

A number once handed out is his for ever, written down before it is used: files on the disk know only numbers. The
numbers are of this machine, so they lie in the home and not in the database.
"""

from __future__ import annotations

import json
import pwd
import threading
from dataclasses import dataclass
from pathlib import Path

from shoal.engine.isolation import LEAST_PERSON, Rules
from shoal.errors import BadConfig
from shoal.home import write_private


@dataclass(frozen=True, slots=True)
class Person:
    """`home` is None for one whom the system does not know."""

    uid: int
    gid: int
    name: str
    home: str | None = None


class Persons:
    """The persons of one home; safe from several threads."""

    def __init__(self, file: Path, rules: Rules) -> None:
        self._file = file
        self._rules = rules
        self._lock = threading.Lock()

    def check(self) -> None:
        """BadConfig for a table that names nobody, or root."""
        for user in self._rules.users:
            self.of(user)

    def of(self, user: str) -> Person:
        """BadConfig when there is none for him."""
        named = self._rules.users.get(user)
        if named is not None:
            return _known(user, named)
        if self._rules.same_name:
            found = _find(user)
            if found is not None and found.pw_uid >= LEAST_PERSON:
                return _person(found)
        uid = self._handed_out(user)
        return Person(uid, uid, user)

    def _handed_out(self, user: str) -> int:
        with self._lock:
            known = self._read()
            if user not in known:
                known[user] = self._free(set(known.values()))
                write_private(self._file, json.dumps(known, indent=1) + "\n")
            return known[user]

    def _free(self, taken: set[int]) -> int:
        first, last = self._rules.uids
        for uid in range(first, last + 1):
            if uid not in taken and _find(uid) is None:
                return uid
        raise BadConfig(f"all numbers of isolation.uids, {first} to {last}, are taken; widen the range")

    def _read(self) -> dict[str, int]:
        try:
            return {str(user): int(uid) for user, uid in json.loads(self._file.read_text()).items()}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError) as wrong:
            raise BadConfig(
                f"{self._file} says whose numbers are whose and cannot be read: {wrong}; restore it"
            ) from None


def _known(user: str, named: str | int) -> Person:
    found = _find(named)
    if found is None and isinstance(named, int) and named >= LEAST_PERSON:
        return Person(named, named, user)
    if found is None:
        raise BadConfig(f"isolation.users.{user}: this system has no user {named!r}; create it, or name another")
    if found.pw_uid == 0:
        raise BadConfig(f"isolation.users.{user}: {named!r} is root, which would undo the isolation; name another")
    return _person(found)


def _person(found: pwd.struct_passwd) -> Person:
    return Person(found.pw_uid, found.pw_gid, found.pw_name, found.pw_dir)


def _find(named: str | int) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(named) if isinstance(named, int) else pwd.getpwnam(named)
    except (KeyError, OverflowError):
        return None
