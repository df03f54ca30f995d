"""A worker of a chief: asks for a task, fetches the arrays it does not have yet, runs it, brings the result.

Tasks run in the main thread, one at a time. A second thread waits for the word that a task is not wanted any more: it
is interrupted then as Ctrl-C would; one that does not listen for five seconds takes the process with it, which begins
anew under the same number.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shoal.adapters.sklearn.desk import ORDERS, TASKS
from shoal.adapters.sklearn.parcels import Marks, Parcel, digest, pack, unpack
from shoal.adapters.sklearn.place import Place
from shoal.train.errors import PeerLost, WaitedTooLong
from shoal.train.wire.frames import Meta
from shoal.train.wire.link import Link

FIRST_WAIT = 60.0  # seconds between two notes while the chief does not listen yet
PATIENCE = 30.0  # seconds a chief that was there may be away
FAREWELL = 1.0  # seconds the other thread has to hear that the work is over
DEAF = 5.0  # seconds a task may take to hear that nobody wants it

_log = logging.getLogger("shoal.joblib")


class Changed(RuntimeError):
    """An array that was written into between being named and being sent."""


class Larder:
    """Arrays by digest, as many as `room` bytes hold; what was used last stays. The task at hand always has its own."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._kept: OrderedDict[str, bytes | memoryview] = OrderedDict()

    def lacks(self, name: str) -> bool:
        return name not in self._kept

    def add(self, name: str, content: memoryview) -> None:
        self._kept[name] = content.toreadonly()

    def get(self, name: str, shared: bool) -> memoryview | bytearray:
        """The shared bytes, read-only, or a copy to write into."""
        self._kept.move_to_end(name)
        content = self._kept[name]
        return memoryview(content) if shared else bytearray(content)

    def trim(self) -> None:
        while len(self._kept) > 1 and sum(memoryview(one).nbytes for one in self._kept.values()) > self._room:
            self._kept.popitem(last=False)


@dataclass
class _Now:
    """What the main thread does; the handler of SIGINT runs there too, so nothing comes between look and raise."""

    task: int | None = None
    unwanted: int | None = None


class Worker:
    """`run` returns when the chief says that the work is over, or is gone."""

    def __init__(self, place: Place, room: int) -> None:
        self._place = place
        self._larder = Larder(room)
        self._now = _Now()
        self._quiet = threading.Event()  # set while no task runs
        self._main = threading.get_ident()
        self._ears: threading.Thread | None = None

    def run(self) -> int:
        signal.signal(signal.SIGINT, self._interrupt)
        link = self._reach()
        while True:
            try:
                self._serve(link)
                if self._ears is not None:
                    self._ears.join(FAREWELL)  # it is being told the same
                return 0
            except PeerLost as lost:
                _log.warning("%s; looking for the chief again", lost.message)
                link.close()
            try:
                link = self._open(TASKS, PATIENCE)
            except (PeerLost, WaitedTooLong):
                _log.warning("the chief did not come back within %g s; leaving", PATIENCE)
                return 0

    def _reach(self) -> Link:
        while True:
            try:
                return self._open(TASKS, FIRST_WAIT)
            except (PeerLost, WaitedTooLong) as waited:
                _log.warning("%s", waited.message)

    def _open(self, service: str, deadline: float) -> Link:
        place = self._place
        host, port, secret = place.host, place.port, place.secret
        return Link.open(host, port, secret, service=service, me=place.name, peer=place.chief, deadline=deadline)

    def _serve(self, link: Link) -> None:
        ask: Meta = {"kind": "next"}
        parcel = Parcel(b"")
        listening = False
        while True:
            reply = link.ask(ask, (parcel.pickled, *(part.content for part in parcel.parts)))
            if reply.meta["kind"] == "over":
                return
            if not listening:
                listening = True
                self._listen(int(reply.meta["me"]))
            ask, parcel = self._work(link, reply.meta, reply.payload)
            self._larder.trim()

    def _work(self, link: Link, told: Meta, pickled: memoryview) -> tuple[Meta, Parcel]:
        """What to ask next: with the outcome, or with none where nobody wants it."""
        number = int(told["task"])
        try:
            if not self._stock(link, number, told["parts"]):
                return {"kind": "next"}, Parcel(b"")
            contents = [self._larder.get(name, shared) for name, _size, shared in told["parts"]]
            self._stand_as(told["path"], told["cwd"])
            about, parcel = self._outcome(number, pickled, contents)
        except Changed as changed:
            about, parcel = _failure(changed)
        sizes = [len(parcel.pickled), *(part.size for part in parcel.parts)]
        return {"kind": "next", "task": number, "sizes": sizes, **about}, parcel

    def _outcome(self, number: int, pickled: memoryview, contents: list[memoryview | bytearray]) -> tuple[Meta, Parcel]:
        trouble: BaseException
        try:
            self._quiet.clear()
            self._now.task = number
            return {}, pack(unpack(pickled, contents)(), Marks(None))
        except BaseException as wrong:  # also SystemExit: a task that leaves is a task that failed
            trouble = wrong
        finally:
            self._now.task = None
            self._quiet.set()
        return _failure(trouble)

    def _stock(self, link: Link, number: int, parts: Sequence[tuple[str, int, bool]]) -> bool:
        """Fetches what is not here; False when the chief does not want the task any more."""
        lacking = {name: at for at, (name, _size, _shared) in enumerate(parts) if self._larder.lacks(name)}
        if not lacking:
            return True
        reply = link.ask({"kind": "fetch", "task": number, "parts": list(lacking.values())})
        if reply.meta["kind"] == "gone":
            return False
        begin = 0
        for name, at in lacking.items():
            size = parts[at][1]
            # A buffer of its own: what is thrown out later frees its own bytes, not those of all that came with it.
            content = memoryview(bytes(reply.payload[begin : begin + size])) if len(lacking) > 1 else reply.payload
            begin += size
            if digest(content) != name:
                raise Changed(
                    f"an array of {size} bytes was changed while tasks that use it were on their way; give each call "
                    "of Parallel an array of its own, or wait for its results before writing"
                )
            self._larder.add(name, content)
        return True

    def _stand_as(self, path: Sequence[str], cwd: str) -> None:
        """Modules and files are found where the chief finds them."""
        sys.path.extend(entry for entry in path if entry not in sys.path)
        with suppress(OSError):  # a folder that only the chief's node has
            if cwd and cwd != str(Path.cwd()):
                os.chdir(cwd)

    def _listen(self, me: int) -> None:
        self._ears = threading.Thread(target=self._hear, args=(me,), name="shoal-orders", daemon=True)
        self._ears.start()

    def _hear(self, me: int) -> None:
        with suppress(PeerLost, WaitedTooLong):  # the main thread sees the same, and acts
            link = self._open(ORDERS, PATIENCE)
            while True:
                order = link.ask({"kind": "wait", "me": me}).meta
                if order["kind"] == "over":
                    return link.close()
                self._give_up(int(order["task"]))

    def _give_up(self, number: int) -> None:
        if self._now.task != number:
            return
        self._now.unwanted = number
        signal.pthread_kill(self._main, signal.SIGINT)  # to that thread, so that its sleep ends too
        if not self._quiet.wait(DEAF):
            _log.warning("a task that nobody wants does not listen: this worker begins anew")
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])

    def _interrupt(self, _number: int, _frame: object) -> None:
        now = self._now
        if now.task is not None and now.task == now.unwanted:
            now.unwanted = None
            raise KeyboardInterrupt


def _failure(trouble: BaseException) -> tuple[Meta, Parcel]:
    return {"traceback": _text(trouble)}, _packed_error(trouble)


def _text(trouble: BaseException) -> str:
    """The traceback without the frames of this file."""
    trace = trouble.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(trouble), trouble, trace))


def _packed_error(trouble: BaseException) -> Parcel:
    """An exception that cannot be pickled, or not be made again, travels as what it says."""
    try:
        parcel = pack(trouble.with_traceback(None), Marks(None))
        if isinstance(unpack(parcel.pickled, [part.content for part in parcel.parts]), BaseException):
            return parcel
    except Exception as wrong:
        _log.warning("%s cannot travel (%s) and is sent as words", type(trouble).__name__, wrong)
    return pack(RuntimeError(f"{type(trouble).__name__}: {trouble}"), Marks(None))
