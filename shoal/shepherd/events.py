"""What happened to the ranks, numbered, until the server has acknowledged it; also in a file, for a successor."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Deque, Dict, List

from shoal.shepherd.journal import Journal


class Events:
    """Numbers run from 1 without a hole, over the shepherd's whole life."""

    def __init__(self, path: Path, journal: Journal) -> None:
        self._path = path
        self._journal = journal
        self._lock = threading.Lock()
        self._waiting: Deque[Dict[str, Any]] = deque()
        self._count = 0

    def add(self, event: str, member: str, incarnation: int, **facts: Any) -> None:
        """`facts`: pid, exit_code, signal, oom, message, tail; what is not said is null."""
        blank = {"pid": None, "exit_code": None, "signal": None, "oom": False, "message": None, "tail": None}
        about = {"member": member, "incarnation": incarnation, "event": event, "at": time.time()}
        with self._lock:
            self._count += 1
            record = {"n": self._count, **about, **blank, **facts}
            self._waiting.append(record)
            self._write(record)

    def load(self) -> bool:
        """Takes up the file of a shepherd that is gone; False when it never got as far as an event."""
        if not self._path.exists():
            return False
        with self._lock:
            for line in self._path.read_text("utf-8", "replace").splitlines():
                try:
                    self._waiting.append(json.loads(line))
                except ValueError:
                    self._journal.note(f"a torn line in {self._path.name} is left out: {line[:80]!r}")
            self._count = len(self._waiting)
            return self._count > 0

    def waiting(self, most: int) -> List[Dict[str, Any]]:
        with self._lock:
            return [self._waiting[at] for at in range(min(most, len(self._waiting)))]

    def acknowledge(self, number: int) -> None:
        """The server has everything up to and including `number`."""
        with self._lock:
            while self._waiting and self._waiting[0]["n"] <= number:
                self._waiting.popleft()

    def _write(self, record: Dict[str, Any]) -> None:
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            self._journal.note(
                f"{self._path.name} cannot be written, so event {record['n']} is only in memory: {error}"
            )
