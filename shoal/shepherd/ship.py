"""Brings spool, events and progress to the server: in batches, compressed, again and again until it has them.

In each round the lines go first, so that whoever sees the end of a rank also finds its last words.
"""

from __future__ import annotations

import struct
import threading
import time
import zlib
from typing import Any, Dict, List, Optional

from shoal.errors import GangOver, ServerAway
from shoal.shepherd.course import Course
from shoal.shepherd.events import Events
from shoal.shepherd.gang import Gang, pause
from shoal.shepherd.mail import Mailbox
from shoal.shepherd.progress import Board
from shoal.shepherd.spool import Spool

PIECE = 1024 * 1024  # bytes of one stream at a time, before compression
REQUEST = 4 * 1024 * 1024  # bytes of one request, before compression
FIRST_WAIT = 0.005  # seconds: lines of several ranks often come together
LINES_EVERY = 0.05
PROGRESS_EVERY = 1.0
EVENT_WAIT = 0.01
_EVENTS = 200  # per request
_PIECE_HEAD = struct.Struct(">HQI")


class Shipper:
    """Runs in a thread of its own; the other methods may be called from any.

    `late`: the gang may be over already. Then nobody asks for events any more, but its last lines are still taken.
    """

    def __init__(
        self, gang: Gang, spool: Spool, events: Events, board: Board, mailbox: Mailbox, late: bool = False
    ) -> None:
        self._late = late
        self._gang = gang
        self._spool = spool
        self._events = events
        self._board = board
        self._mailbox = mailbox
        self._courses = [Course(stream) for stream in spool.streams]
        self._bell = threading.Condition()
        self._due: Optional[float] = None
        self._finishing = False
        self._lines_at = 0.0  # when lines were sent last
        self._progress_at = 0.0
        self._doubted: List[Course] = []  # streams whose end on the server must be asked for
        self._unsent: Dict[str, Any] = {}  # progress the server has not got

    def lines_came(self) -> None:
        self._ring(max(time.monotonic() + FIRST_WAIT, self._lines_at + LINES_EVERY))

    def events_came(self) -> None:
        self._ring(time.monotonic() + EVENT_WAIT)

    def progress_came(self) -> None:
        self._ring(max(time.monotonic() + FIRST_WAIT, self._progress_at + PROGRESS_EVERY))

    def finish(self) -> None:
        """Nothing more will come: send the rest, say `done`, and send a `shipped` letter."""
        self._finishing = True
        self._ring(0.0)

    def run(self) -> None:
        try:
            while not self._finishing or not self._all_sent():
                self._sleep()
                self._persist()
            self._gang.again(self._gang.done)
            self._mailbox.put("shipped")
        except GangOver as over:
            self._mailbox.put("over", why=over.message)

    def doubt(self) -> None:
        """What the server has of each stream is not known, so it is asked first; also for a successor."""
        self._doubted = [course for course in self._courses if course.stream.end]

    def _ring(self, at: float) -> None:
        with self._bell:
            if self._due is None or at < self._due:
                self._due = at
                self._bell.notify()

    def _sleep(self) -> None:
        with self._bell:
            while self._due is None or self._due > time.monotonic():
                self._bell.wait(None if self._due is None else self._due - time.monotonic())
            self._due = None

    def _persist(self) -> None:
        """Rounds until one has reached the server."""
        tries = 0
        while True:
            try:
                self._round()
                return
            except ServerAway:
                time.sleep(pause(tries))
                tries += 1

    def _round(self) -> None:
        trouble: Optional[ServerAway] = None
        try:
            self._send_lines()
        except ServerAway as error:  # a server that cannot take lines may still take events
            self.doubt()
            trouble = error
        self._send_events()
        self._send_progress()
        if trouble:
            raise trouble
        if self._finishing or self._backlog():
            self._ring(0.0 if self._finishing else self._lines_at + LINES_EVERY)

    def _send_lines(self) -> None:
        """At least what is there now, unless it is much and events wait."""
        self._ask_doubted()
        while True:
            batch = self._batch()
            if not batch:
                return
            self._lines_at = time.monotonic()
            self._settle(list(batch), self._gang.logs(b"".join(batch.values())))
            if self._backlog() < PIECE or self._events.waiting(1):
                return

    def _ask_doubted(self) -> None:
        if self._doubted:
            ends = self._gang.logs(b"".join(_packed(course, course.settled_at, b"") for course in self._doubted))
            for course in self._doubted:
                course.settle(int(ends.get(course.stream.name, course.settled_at)))
            self._doubted = []

    def _backlog(self) -> int:
        return sum(course.backlog for course in self._courses)

    def _batch(self) -> Dict[Course, bytes]:
        """The next pieces of all streams in turn, up to the size of a request."""
        pieces: Dict[Course, bytes] = {}
        left = REQUEST
        hungry = [course for course in self._courses if course.backlog]
        while hungry and left > 0:
            course = hungry.pop(0)
            piece = course.next_piece(min(PIECE, left))
            if piece is not None:
                left -= len(piece[1])
                pieces[course] = pieces.get(course, b"") + _packed(course, *piece)
                hungry.append(course)
        return pieces

    def _settle(self, sent: List[Course], ends: Dict[str, int]) -> None:
        known = [course for course in sent if course.stream.name in ends]
        moved = [course.settle(int(ends[course.stream.name])) for course in known]
        if len(known) < len(sent) or not any(moved):
            # A server that takes nothing is as good as one that is away; asking on without a pause would be a storm.
            raise ServerAway("the server took none of the lines")

    def _send_events(self) -> None:
        while True:
            waiting = self._events.waiting(_EVENTS)
            if not waiting:
                return
            acknowledged = self._report(waiting)
            if acknowledged < waiting[0]["n"]:
                raise ServerAway("the server took none of the events")
            self._events.acknowledge(acknowledged)

    def _report(self, events: List[Dict[str, Any]]) -> int:
        try:
            return self._gang.ranks(events)
        except GangOver:
            if not self._late:
                raise
            return int(events[-1]["n"])

    def _send_progress(self) -> None:
        now = time.monotonic()
        if not self._finishing and now < self._progress_at + PROGRESS_EVERY:
            if self._board.changed:
                self.progress_came()
            return
        changed = self._board.fetch()
        for member, facts in changed.items():
            self._spool.samples(member).write_json({"at": time.time(), "progress": facts})
        self._unsent.update(changed)
        if self._unsent:
            self._progress_at = now
            self._gang.beat(0, self._unsent)
            self._unsent = {}

    def _all_sent(self) -> bool:
        level = all(course.level for course in self._courses)
        return level and not self._events.waiting(1) and not self._board.changed and not self._unsent


def _packed(course: Course, offset: int, data: bytes) -> bytes:
    name = course.stream.name.encode()
    body = zlib.compress(data, 1)
    return _PIECE_HEAD.pack(len(name), offset, len(body)) + name + body
