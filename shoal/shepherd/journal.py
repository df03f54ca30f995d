"""The shepherd's own log, `<node>.log` in the gang's folder: what went wrong, for whoever looks into it later."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

_MOST = 4 * 1024 * 1024  # bytes; a server that is away for a week must not fill the disk


class Journal:
    """Lines with a time. Writing never raises: a full disk must not end what the shepherd watches."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._said = ""

    def note(self, text: str) -> None:
        """Writes a line, unless it says the same as the one before."""
        with self._lock:
            if text != self._said:
                self._said = text
                self._append(text)

    def _append(self, text: str) -> None:
        line = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} [{os.getpid()}] {text}\n"
        try:
            with open(self._path, "a", encoding="utf-8", errors="replace") as file:
                if file.tell() < _MOST:
                    file.write(line)
        except OSError:
            pass  # there is nowhere left to say it
