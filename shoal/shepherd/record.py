"""Tells the server what its ranks run in: the machine, their commands, and what is installed in their interpreter.

In a thread of its own, and never before the ranks: they are started first, and an interpreter whose packages nobody
asked for yet is only asked when the ranks have had some seconds for themselves, or have ended.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from shoal._lib import process
from shoal.contract import Process, Task
from shoal.errors import GangOver, ServerAway
from shoal.shepherd.gang import Gang, pause
from shoal.shepherd.journal import Journal
from shoal.shepherd.mail import Mailbox
from shoal.shepherd.place import Place

if TYPE_CHECKING:
    from shoal.shepherd.packages import Memory

NAME = "record"  # the process that is asked carries it where ranks carry theirs
FIRST_WAIT = 0.2  # seconds: the ranks' start is over by then
QUIET = 3.0  # seconds that ranks have for themselves before an interpreter is asked
PATIENCE = 5.0  # seconds a node whose ranks are gone waits for an answer
LIMIT = 30.0  # seconds an interpreter may take
LAST_TRIES = 10  # to send the record, once the ranks are gone
_MOST_OUTPUT = 8 << 20
_MOST_WORDS = 2_000
_LONGEST_WORD = 4_000

Asked = Optional[Tuple[int, int]]  # process id and the handle its answer comes from


class Recorder:
    """`started` begins it, once; `hurry` makes an end of waiting. A `recorded` letter says that it is through."""

    def __init__(self, task: Task, gang: Gang, place: Place, mailbox: Mailbox, journal: Journal) -> None:
        self._roles = {seat.name: seat.role for seat in task.seats}
        self._cache = task.cache
        self._gang = gang
        self._place = place
        self._mailbox = mailbox
        self._journal = journal
        self._hurried = threading.Event()
        self._give_up_at: Optional[float] = None  # monotonic
        self.busy = False
        self._processes: List[Process] = []

    def started(self, processes: List[Process]) -> bool:
        """True for the first ones: then `run` is to be run."""
        if self._processes or not processes:
            return False
        self._processes = processes
        self.busy = True
        return True

    def hurry(self) -> None:
        """The ranks are gone: nobody is disturbed any more, and everybody waits."""
        if self._give_up_at is None:
            self._give_up_at = time.monotonic() + PATIENCE
            self._hurried.set()

    def run(self) -> None:
        try:
            self._record()
        except GangOver as over:
            self._mailbox.put("over", why=over.message)
        finally:
            self.busy = False
            self._mailbox.put("recorded")

    def _record(self) -> None:
        self._hurried.wait(FIRST_WAIT)
        # Here, because the start of the shepherd must not wait for these and for the patterns they compile.
        from shoal._lib.privacy import secret_values
        from shoal.shepherd import host, packages

        first = self._first_of_roles()
        known = secret_values(*(each.env for each in self._processes))
        about: Dict[str, Any] = {
            "host": host.about(),
            "commands": {each.name: self._command(each, known) for each in first},
        }
        asked = next(filter(None, map(self._question, first)), None)
        if asked is None:
            self._send(about)
            return
        memory = packages.Memory(Path(self._cache or self._place.folder) / "packages")
        told = memory.find(*asked)
        if told is None:
            self._send(about)
            self._hurried.wait(QUIET)
            told = self._ask(memory, *asked)
        self._send({**about, **_said(told)})

    def _first_of_roles(self) -> List[Process]:
        """The processes here with the lowest number of their role, workers before servers and others."""
        found: Dict[str, Process] = {}
        for each in sorted(self._processes, key=lambda one: _number(one.name)):
            found.setdefault(self._roles.get(each.name, ""), each)
        return sorted(found.values(), key=lambda one: self._roles.get(one.name, "") not in ("worker", "chief"))

    def _command(self, what: Process, known: List[str]) -> Dict[str, Any]:
        from shoal._lib.privacy import hide

        argv = [word[:_LONGEST_WORD] for word in hide(what.argv, known)[:_MOST_WORDS]]
        return {"role": self._roles.get(what.name, ""), "argv": argv, "env": sorted(what.env)[:_MOST_WORDS]}

    def _question(self, what: Process) -> Optional[Tuple[List[str], Dict[str, str]]]:
        """The interpreter's words, and the variables it is asked with; None for a program that is no Python."""
        from shoal.shepherd import packages

        whole = self._place.environment(what, dict(os.environ))
        words = packages.interpreter(what.argv, whole.get("PATH", os.defpath))
        return None if words is None else (words, packages.variables(whole))

    def _ask(self, memory: Memory, words: List[str], env: Dict[str, str]) -> Dict[str, Any]:
        """What the interpreter says, or a note why it said nothing."""
        from shoal.shepherd import packages

        reply: SimpleQueue[Asked] = SimpleQueue()
        what = Process(NAME, packages.question(words), env)
        self._mailbox.put("ask", what=what, reply=reply)  # only the main thread may start processes
        asked = reply.get()
        if asked is None:
            return {"note": f"{words[-1]} could not be asked what is installed there"}
        told = packages.answer(self._listen(*asked))
        if told is None:
            return {"note": f"{words[-1]} did not say what is installed there"}
        memory.keep(words, env, told)
        return told

    def _listen(self, pid: int, handle: int) -> bytes:
        """All it prints, until it ends or the time is over."""
        heard = bytearray()
        until = time.monotonic() + LIMIT
        with open(handle, "rb", buffering=0) as file:
            while len(heard) < _MOST_OUTPUT:
                limit = until if self._give_up_at is None else min(until, self._give_up_at)
                if time.monotonic() >= limit:
                    break
                if select.select([file], [], [], 0.1)[0]:
                    piece = file.read(1 << 16)
                    if not piece:
                        return bytes(heard)
                    heard += piece
        process.send_group(pid, signal.SIGKILL)
        self._journal.note("the interpreter took too long to say what is installed there")
        return b""

    def _send(self, record: Dict[str, Any]) -> None:
        """Again until the server has it; once the ranks are gone and all wait for us, a few times more at most."""
        tries = late = 0
        while late < LAST_TRIES:
            try:
                return self._gang.record(record)
            except ServerAway:
                time.sleep(pause(tries))
                tries += 1
                late += self._hurried.is_set()
        self._journal.note("the server did not take the record of what the ranks ran in")
        return None


def _said(told: Dict[str, Any]) -> Dict[str, Any]:
    if "note" in told:
        return told
    kept = {name: told[name] for name in ("packages", "sources", "cuda")}
    return {**kept, "interpreter": {"path": told["path"], "version": told["version"]}}


def _number(name: str) -> int:
    number = name.rpartition("-")[2]
    return int(number) if number.isdigit() else 0
