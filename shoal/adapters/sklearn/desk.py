"""The chief's desk: tasks that wait, who holds which, and what became of them. Workers come and ask.

A task is held by one connection at a time; what comes from another is not believed, so every result is used once. When
a worker is lost its task goes to the next one that asks, before all others; a task that was lost with three workers is
given up, because it is the likely cause.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.adapters.sklearn.parcels import Parcel, unpack
from shoal.errors import ShoalError
from shoal.train.wire.frames import Meta
from shoal.train.wire.service import Answer, Peer

MOST_LOSSES = 3  # workers that one task may take with it
TASKS, ORDERS = "tasks", "orders"  # the services of a chief


class TaskLost(ShoalError):
    """A task that its workers did not survive."""

    code = "task_lost"


class WorkerTraceback(Exception):
    """Where a task failed, as its worker saw it: the cause of the exception that the script gets."""

    def __init__(self, worker: str, text: str) -> None:
        super().__init__(f"on {worker}\n{text}")


@dataclass(eq=False)
class Call:
    """The tasks of one `Parallel`: at most `limit` of them run at a time."""

    limit: int
    running: int = 0


@dataclass(eq=False)
class Task:
    number: int
    parcel: Parcel
    call: Call
    future: Future[Any] = field(default_factory=Future)
    losses: list[str] = field(default_factory=list)


class Desk:
    """Shared by all threads of the script and by the connections of all workers."""

    def __init__(self) -> None:
        self.bytes_sent = 0
        self._changed = threading.Condition()
        self._queue: list[Task] = []
        self._held: dict[int, Task] = {}  # by the number of the connection
        self._abandoned: dict[int, int] = {}  # connection → task that nobody wants any more
        self._left: set[int] = set()
        self._count = 0
        self._over = False

    # The script's side.

    def submit(self, parcel: Parcel, call: Call) -> Future[Any]:
        with self._changed:
            self._count += 1
            task = Task(self._count, parcel, call)
            self._queue.append(task)
            self._changed.notify_all()
        return task.future

    def abandon(self, call: Call) -> None:
        """Nobody wants the rest of this call: what waits is forgotten, who works at it is told to stop."""
        with self._changed:
            self._queue = [task for task in self._queue if task.call is not call]
            for connection, task in list(self._held.items()):
                if task.call is call:
                    del self._held[connection]
                    self._abandoned[connection] = task.number
            self._changed.notify_all()

    def close(self) -> None:
        """From now on every worker that asks is sent home. Harmless twice."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def count_sent(self, size: int) -> None:
        with self._changed:
            self.bytes_sent += size

    # The workers' side.

    def take(self, connection: int) -> Task | None:
        """The next task for this connection; blocks until there is one. None: the work is over, or the worker left."""
        with self._changed:
            while not self._over and connection not in self._left:
                task = next((one for one in self._queue if one.call.running < one.call.limit), None)
                if task is not None:
                    self._queue.remove(task)
                    task.call.running += 1
                    self._held[connection] = task
                    return task
                self._changed.wait()
        return None

    def held(self, connection: int, number: int) -> Task | None:
        """The task, when it is this connection's and still wanted."""
        with self._changed:
            task = self._held.get(connection)
        return task if task is not None and task.number == number else None

    def settle(self, connection: int, number: int) -> Task | None:
        """Takes the task off the connection, whose result is here. None when nobody waits for it any more."""
        with self._changed:
            self._abandoned.pop(connection, None)
            task = self._held.get(connection)
            if task is None or task.number != number:
                return None
            del self._held[connection]
            task.call.running -= 1
            self._changed.notify_all()
        return task

    def lose(self, connection: int, worker: str) -> None:
        """The connection is over: its task goes to another worker."""
        with self._changed:
            self._left.add(connection)
            self._abandoned.pop(connection, None)
            task = self._held.pop(connection, None)
            if task is not None:
                task.call.running -= 1
                task.losses.append(worker)
                if len(task.losses) < MOST_LOSSES:
                    self._queue.insert(0, task)
            self._changed.notify_all()
        if task is not None and len(task.losses) >= MOST_LOSSES:
            task.future.set_exception(TaskLost(_lost_words(task), workers=task.losses))

    def await_order(self, connection: int) -> int | None:
        """The number of the task that this connection should give up, once there is one. None: the worker left."""
        with self._changed:
            while not self._over and connection not in self._left:
                if connection in self._abandoned:
                    return self._abandoned.pop(connection)
                self._changed.wait()
        return None


class Tasks:
    """The service that workers ask for work: `next` (with the result of the last task) and `fetch` for its parts."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def handle(self, peer: Peer, meta: Meta, payload: memoryview) -> Answer:
        if meta["kind"] == "fetch":
            return self._parts(peer, meta["task"], meta["parts"])
        if "task" in meta:
            self._deliver(peer, meta, payload)
        task = self._desk.take(peer.number)
        if task is None:
            return {"kind": "over"}, ()
        self._desk.count_sent(len(task.parcel.pickled))
        told = [[part.digest, part.size, part.shared] for part in task.parcel.parts]
        about = {"task": task.number, "parts": told, "path": sys.path, "cwd": _folder(), "me": peer.number}
        return {"kind": "task", **about}, (task.parcel.pickled,)

    def buffer(self, peer: Peer, meta: Meta, size: int) -> memoryview | None:
        return None

    def left(self, peer: Peer) -> None:
        self._desk.lose(peer.number, peer.name)

    def _parts(self, peer: Peer, number: int, wanted: Sequence[int]) -> Answer:
        task = self._desk.held(peer.number, number)
        if task is None:
            return {"kind": "gone"}, ()
        contents = [task.parcel.parts[each].content for each in wanted]
        self._desk.count_sent(sum(content.nbytes for content in contents))
        return {"kind": "parts"}, contents

    def _deliver(self, peer: Peer, meta: Meta, payload: memoryview) -> None:
        """The callbacks of a future run in this thread: joblib takes the next tasks out of the script's generator."""
        task = self._desk.settle(peer.number, meta["task"])
        if task is None:
            return
        try:
            outcome = _opened(meta["sizes"], payload)
        except Exception as wrong:
            unreadable = RuntimeError(f"the result of a task on {peer.name} cannot be read here: {wrong!r}")
            unreadable.__cause__ = wrong
            task.future.set_exception(unreadable)
            return
        if "traceback" in meta:
            outcome.__cause__ = WorkerTraceback(peer.name, meta["traceback"])
            task.future.set_exception(outcome)
        else:
            task.future.set_result(outcome)


class Orders:
    """The service at which each worker waits to be told that its task is not wanted any more."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def handle(self, peer: Peer, meta: Meta, payload: memoryview) -> Answer:
        number = self._desk.await_order(int(meta["me"]))
        return ({"kind": "over"} if number is None else {"kind": "abandon", "task": number}), ()

    def buffer(self, peer: Peer, meta: Meta, size: int) -> memoryview | None:
        return None

    def left(self, peer: Peer) -> None:
        """Nothing: the worker's other connection ends with it."""


def _opened(sizes: Sequence[int], payload: memoryview) -> Any:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(payload[at : at + size])
        at += size
    return unpack(pieces[0], pieces[1:])


def _folder() -> str:
    with suppress(OSError):  # the script may have removed the folder it stands in
        return str(Path.cwd())
    return ""


def _lost_words(task: Task) -> str:
    return (
        f"a task of joblib was lost with its worker {len(task.losses)} times ({', '.join(task.losses)}) and is given "
        "up: it seems to end the process it runs in; see the workers' logs, and give them more memory if they ran out"
    )
