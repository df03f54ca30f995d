"""XGBoost's tracker as a process of the job: `python -m shoal.adapters.tracker`.

It tells the workers of each other and ends when all of them have said goodbye. XGBoost ends workers whose tracker is
gone, so one that is asked to stop stays until the workers have left: they may have something to save.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import threading
from types import FrameType
from typing import Any

from shoal import contract

PORT = contract.PORT_PREFIX + "TRACK"


def main() -> None:
    try:
        from xgboost.tracker import RabitTracker
    except ImportError as missing:
        raise SystemExit(
            f"this job's interpreter has no xgboost ({missing}); install xgboost-cpu there, or name an environment"
        ) from None
    host, workers = os.environ["DMLC_TRACKER_URI"], int(os.environ["DMLC_NUM_WORKER"])
    tracker = RabitTracker(n_workers=workers, host_ip=host, port=int(os.environ[PORT]), sortby="task")
    tracker.start()
    gate = Gate(host, int(os.environ[contract.GATE]))
    print(f"the tracker waits for {workers} worker{'s'[: workers != 1]} at {host}:{os.environ[PORT]}", flush=True)
    threading.Thread(target=gate.wait_for, args=(tracker,), daemon=True).start()
    gate.watch()
    os._exit(0)  # what else there is waits in C++ for workers that never come


class Gate:
    """A port that is open from the moment the tracker can be reached: XGBoost's own next try to connect would come two
    seconds later. Workers keep their end open for as long as they live."""

    def __init__(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family)
        self._ear, self._mouth = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._inside: set[socket.socket] = set()
        self._asked = self._done = False
        for one in (self._listener, self._ear):
            self._selector.register(one, selectors.EVENT_READ)
        self._mouth.setblocking(False)
        signal.set_wakeup_fd(self._mouth.fileno())
        signal.signal(signal.SIGTERM, self._told)

    def wait_for(self, tracker: Any) -> None:
        """In a thread: until all workers have said goodbye to the tracker."""
        tracker.wait_for()
        self._done = True
        self._mouth.send(b"\0")

    def watch(self) -> None:
        """Until the tracker is done, or somebody asked to stop and nobody is inside any more."""
        while not self._done and not (self._asked and not self._inside):
            for key, _ in self._selector.select():
                self._look(key.fileobj)

    def _look(self, ready: Any) -> None:
        if ready is self._listener:
            caller = self._listener.accept()[0]
            self._inside.add(caller)
            self._selector.register(caller, selectors.EVENT_READ)
        elif ready is self._ear:
            self._ear.recv(64)
        elif _has_left(ready):
            self._selector.unregister(ready)
            self._inside.discard(ready)
            ready.close()

    def _told(self, number: int, frame: FrameType | None) -> None:
        self._asked = True


def _has_left(caller: socket.socket) -> bool:
    try:
        return not caller.recv(64)
    except OSError:
        return True


if __name__ == "__main__":
    main()
