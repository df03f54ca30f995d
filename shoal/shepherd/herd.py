"""The main loop: hears directives, signals and the other threads, starts ranks, sees them end, leaves no one behind.

Everything a rank goes through happens in this one thread; the others read, ship, beat, fetch, measure and record, and
write letters. A rank is over when its process has ended, what it left behind is gone, and its output was read to the
end.
"""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from queue import SimpleQueue
from typing import Any, Callable, Dict, List, Optional, Set

from shoal._lib import process
from shoal.contract import Process, Task, stacks_end, stacks_start
from shoal.shepherd import stacks
from shoal.shepherd.beat import Beater
from shoal.shepherd.environment import Outfitter
from shoal.shepherd.events import Events
from shoal.shepherd.fetch import Fetcher
from shoal.shepherd.gang import Gang
from shoal.shepherd.journal import Journal
from shoal.shepherd.mail import Mailbox, run_thread
from shoal.shepherd.output import Reader
from shoal.shepherd.place import Place
from shoal.shepherd.ports import Ports
from shoal.shepherd.progress import Board
from shoal.shepherd.rank import Rank
from shoal.shepherd.record import Asked, Recorder
from shoal.shepherd.samples import Sampler, Subject
from shoal.shepherd.ship import Shipper
from shoal.shepherd.spawn import SpawnFailed, spawn
from shoal.shepherd.spool import Spool

CRASHED = 70  # exit status
OWN_STOP_GRACE = 5.0  # seconds, when the shepherd itself is asked to end
LEFTOVER_GRACE = 1.0  # seconds for what a rank leaves behind
_LET_GO = 1.0  # seconds for an output that somebody outside still holds open
_LOOK_EVERY = 0.02  # seconds, while something is ending
_END_WITHIN = 10.0  # seconds to see ranks die once the shepherd itself has to go
_LONG = 3600.0
_TOLD_TO_END = "the shepherd was told to end (SIGTERM) before the launch; is the node shutting down?"


class Herd:
    """One task, from join to leave. `run` returns the exit status."""

    def __init__(self, task: Task, place: Place, journal: Journal) -> None:
        self._task = task
        self._place = place
        self._journal = journal
        self._mailbox = Mailbox()
        self._ranks: Dict[str, Rank] = {}
        self._restarts: Set[str] = set()  # members to start again, once they are gone
        self._launched = False
        self._stopping = False
        self._told_to_end = False  # by a signal, so that the server does not know yet
        self._killing = False
        self._kill_at: Optional[float] = None  # monotonic
        self._leaving = False
        self._finishing = False
        self._exit: Optional[int] = None
        self._give_up_at: Optional[float] = None  # monotonic
        names = [seat.name for seat in task.seats]
        self._board = Board()
        self._events = Events(place.events, journal)
        self._spool = Spool(place.spool, names, task.log_limit, journal)
        self._gang = Gang(task, self._mailbox, journal)
        self._ports = Ports(task.host, task.seats)
        self._shipper = Shipper(self._gang, self._spool, self._events, self._board, self._mailbox)
        self._reader = Reader(self._spool, self._board, self._mailbox, self._shipper)
        outfitter = Outfitter(task, place, self._build_line, self._waits)
        self._fetcher = Fetcher(self._gang, place, outfitter, self._mailbox, journal)
        self._recorder = Recorder(task, self._gang, place, self._mailbox, journal)
        self._sampler = Sampler(self._spool, self._shipper, self._mailbox)

    def run(self) -> int:
        self._hear()
        self._thread("beat", Beater(self._gang, self._ports.numbers, self._mailbox).run)
        self._thread("ship", self._shipper.run)
        try:
            while self._exit is None or not self._may_go():
                for letter in self._mailbox.wait(self._until_next()):
                    self._open(letter.kind, letter.data)
                self._reap()
                self._keep_deadlines()
                for rank in list(self._ranks.values()):
                    self._see_off(rank)
                self._move_on()
        finally:
            self._kill_all()
            self._fetcher.tidy()
            self._place.tidy()
        return self._exit

    # Letters: from the server (launch … leave), from the threads, from signals.

    def _open(self, kind: str, data: Dict[str, Any]) -> None:
        actions: Dict[str, Callable[..., None]] = {
            "launch": self._launch,
            "stop": self._stop,
            "kill": self._kill,
            "restart": self._restart,
            "roster": lambda **_: self._fetcher.renew_roster(),
            "stacks": self._stacks,
            "leave": self._leave,
            "told_to_end": self._end_by_signal,
            "prepared": self._start,
            "unprepared": self._cannot_start,
            "eof": self._hear_last_words,
            "over_limit": self._punish,
            "ask": self._ask,
            "recorded": lambda **_: None,  # the loop looks again whether everything is done
            "shipped": lambda **_: self._go(0),
            "over": self._give_up,
            "crash": lambda **_: self._go(CRASHED, kill=True),
        }
        if kind in actions:
            actions[kind](**data)
        else:
            self._journal.note(f"the directive {kind!r} is not known to this version and is left out")

    def _launch(self, **_: Any) -> None:
        if self._told_to_end:
            self._cannot_start("", _TOLD_TO_END)
        elif not self._launched and not self._stopping:
            self._launched = True
            self._thread("read", self._reader.run)
            self._thread("fetch", self._fetcher.run)
            self._thread("sample", self._sampler.run)
            self._fetcher.prepare()

    def _stop(self, grace: float = OWN_STOP_GRACE, **_: Any) -> None:
        self._stopping = True
        self._fetcher.abandon()
        kill_at = time.monotonic() + float(grace)
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)
        for rank in self._running():
            rank.ask_to_end()

    def _end_by_signal(self) -> None:
        self._told_to_end = True
        self._stop(OWN_STOP_GRACE)

    def _kill(self, **_: Any) -> None:
        self._stopping = self._killing = True
        self._fetcher.abandon()
        self._kill_all()

    def _restart(self, member: str, **_: Any) -> None:
        if not self._stopping:
            self._restarts.add(member)

    def _stacks(self, ranks: Optional[List[str]] = None, mark: str = "", **_: Any) -> None:
        for rank in self._running():
            if ranks is None or rank.member in ranks:
                self._thread("stacks", partial(self._dump_stacks, rank, mark))

    def _leave(self, **_: Any) -> None:
        self._leaving = self._stopping = True
        self._fetcher.abandon()

    def _start(self, member: str, processes: List[Process]) -> None:
        if self._told_to_end:
            self._cannot_start(member, _TOLD_TO_END)
        if self._stopping:
            return
        self._ports.release()
        begun = [rank for rank in map(self._begin, processes) if not rank.gone]
        for rank in begun:
            self._confirm(rank)
        self._shipper.events_came()
        if self._recorder.started(processes):
            self._thread("record", self._recorder.run)

    def _begin(self, what: Process) -> Rank:
        before = self._ranks.get(what.name)
        rank = self._ranks[what.name] = Rank(what, before.incarnation + 1 if before else 0)
        try:
            env = self._place.environment(what, dict(os.environ), rank.incarnation)
            rank.begin(env, str(self._place.work), f"shoal-{self._task.key}-{what.name}-{rank.incarnation}")
        except (SpawnFailed, OSError) as error:
            self._fail_start(rank, error)
        self._place.note_groups(rank.group_folders)
        return rank

    def _confirm(self, rank: Rank) -> None:
        try:
            handle = rank.confirm()
        except (SpawnFailed, OSError) as error:
            self._fail_start(rank, error)
        else:
            self._board.clear(rank.member)
            self._reader.add(rank.member, rank.incarnation, handle)
            self._events.add("started", rank.member, rank.incarnation, pid=rank.pid)

    def _fail_start(self, rank: Rank, error: Exception) -> None:
        rank.gone = True
        self._events.add("failed_start", rank.member, rank.incarnation, message=str(error))

    def _cannot_start(self, member: str, message: str) -> None:
        message = _TOLD_TO_END if self._told_to_end else message
        for name in [member] if member else [seat.name for seat in self._task.seats]:
            before = self._ranks.get(name)
            incarnation = before.incarnation + 1 if before else 0
            self._events.add("failed_start", name, incarnation, message=message)
        self._shipper.events_came()

    def _hear_last_words(self, member: str, incarnation: int, tail: str) -> None:
        rank = self._ranks[member]
        if rank.incarnation == incarnation:
            rank.tail = tail

    def _punish(self, member: str, incarnation: int, why: str) -> None:
        rank = self._ranks[member]
        if rank.incarnation == incarnation and rank.running:
            rank.over_limit = why
            rank.kill(self._mains())

    def _ask(self, what: Process, reply: SimpleQueue[Asked]) -> None:
        """Starts a process that is no rank, for the recorder."""
        ear, mouth = os.pipe()
        try:
            env = self._place.environment(what, dict(os.environ))
            reply.put((spawn(what.argv, env, "/", mouth), ear))
        except (SpawnFailed, OSError) as error:
            self._journal.note(f"{what.argv[0]} cannot be asked what is installed there: {error}")
            os.close(ear)
            reply.put(None)
        finally:
            os.close(mouth)

    def _give_up(self, why: str) -> None:
        self._journal.note(f"leaving: {why}")
        self._go(0, kill=True)

    # The life of a rank, after its start.

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for rank in self._ranks.values():
                if rank.pid == pid and rank.status is None:
                    rank.status = status

    def _keep_deadlines(self) -> None:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = None
            self._killing = True
            self._kill_all()

    def _see_off(self, rank: Rank) -> None:
        if rank.gone or rank.status is None:
            return
        now = time.monotonic()
        left = rank.remains(self._mains(), alone=not self._running())
        if left:
            self._end_leftovers(rank, left, now)
        elif rank.tail is None:
            rank.close_at = rank.close_at or now + _LET_GO
            if now >= rank.close_at:
                rank.close_at = now + _LONG
                self._reader.close(rank.member, rank.incarnation)
        else:
            self._report_end(rank)

    def _end_leftovers(self, rank: Rank, left: List[int], now: float) -> None:
        first = rank.kill_at is None
        if first:
            rank.kill_at = now if self._killing else now + LEFTOVER_GRACE
        if rank.kill_at is not None and now >= rank.kill_at:
            for pid in left:
                process.send(pid, signal.SIGKILL)
        elif first:
            for pid in left:
                process.send(pid, signal.SIGTERM)

    def _report_end(self, rank: Rank) -> None:
        rank.gone = True
        code = os.waitstatus_to_exitcode(rank.status or 0)
        facts: Dict[str, Any] = {"exit_code": code} if code >= 0 else {"signal": -code}
        oom = rank.ended_by_limit()
        rank.remove_group()
        self._events.add(
            "ended",
            rank.member,
            rank.incarnation,
            pid=rank.pid,
            oom=oom,
            message=rank.over_limit,
            tail=rank.tail,
            **facts,
        )
        self._shipper.events_came()

    def _move_on(self) -> None:
        """What follows from everyone's state: who is measured, who starts again, whether we are finished."""
        followed = [Subject(r.member, r.incarnation, r.pid, r.watched_limit) for r in self._running()]
        self._sampler.follow(tuple(followed))
        for member in list(self._restarts):
            rank = self._ranks.get(member)
            if rank is None or rank.gone:
                self._restarts.discard(member)
                self._fetcher.prepare(member)
        if self._leaving and not self._finishing and self._all_gone():
            self._recorder.hurry()
            if not self._recorder.busy:
                self._finishing = True
                self._shipper.finish()

    # Ends.

    def _go(self, status: int, kill: bool = False) -> None:
        if self._exit is None:
            self._exit = status
            self._give_up_at = time.monotonic() + _END_WITHIN
        if kill:
            self._kill()

    def _may_go(self) -> bool:
        late = self._give_up_at is not None and time.monotonic() >= self._give_up_at
        return late or (not self._running() and not self._others())

    def _others(self) -> List[int]:
        """Children of ours that are no ranks: orphans that hid from their mark. Killed whenever they are seen."""
        found = [pid for pid in process.children(os.getpid()) if pid not in self._mains() and process.alive(pid)]
        for pid in found:
            for each in [*process.descendants(pid), pid]:
                process.send(each, signal.SIGKILL)
        return found

    def _kill_all(self) -> None:
        mains = self._mains()
        for rank in self._running():
            rank.kill(mains)

    def _mains(self) -> Set[int]:
        return {rank.pid for rank in self._ranks.values() if rank.running}

    def _running(self) -> List[Rank]:
        return [rank for rank in self._ranks.values() if rank.running]

    def _all_gone(self) -> bool:
        return all(rank.gone for rank in self._ranks.values())

    # Waiting.

    def _until_next(self) -> float:
        if self._exit is not None or any(rank.status is not None and not rank.gone for rank in self._ranks.values()):
            return _LOOK_EVERY
        return _LONG if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())

    def _hear(self) -> None:
        process.adopt_orphans()
        self._mailbox.hear_signals()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._mailbox.put("told_to_end"))
        # Handlers, not SIG_IGN: what is ignored would stay ignored in the ranks.
        for number in (signal.SIGCHLD, signal.SIGHUP):
            signal.signal(number, lambda *_: None)

    def _dump_stacks(self, rank: Rank, mark: str) -> None:
        text = [*stacks.dump(rank.pid, rank.path).splitlines(), stacks_end(mark)]
        lines = "".join(f"{stacks_start(rank.member)}{line}\n" for line in text)
        self._spool[rank.member].write(lines.encode())
        self._shipper.lines_came()

    def _build_line(self, line: str) -> None:
        """What the building of an environment says, in the log of this node's first rank."""
        self._spool[self._task.seats[0].name].write(f"[environment] {line}\n".encode())
        self._shipper.lines_came()

    def _waits(self, what: str) -> None:
        for seat in self._task.seats:
            self._events.add("preparing", seat.name, 0, message=what)
        self._shipper.events_came()

    def _thread(self, name: str, body: Callable[[], None]) -> None:
        run_thread(name, body, self._mailbox, self._journal)
