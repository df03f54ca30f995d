"""The server's log: one JSON object a line, in server.log, turned over by size. Never a token, never a query string."""

from __future__ import annotations

import json
import logging
import os
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

LARGEST = 10 << 20  # bytes
KEPT = 3  # files: the current one and those before it

_requests = logging.getLogger("shoal.requests")


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "from": record.name,
        }
        line["message"] = record.getMessage()
        line.update(getattr(record, "facts", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class _Private(RotatingFileHandler):
    def _open(self) -> Any:
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace")


def open_journal(path: Path) -> None:
    """Sends all logging of this process to the file; what libraries say only from warnings on."""
    file = _Private(path, maxBytes=LARGEST, backupCount=KEPT - 1)
    file.setFormatter(_Lines())
    root = logging.getLogger()
    root.handlers[:] = [file]
    root.setLevel(logging.WARNING)
    logging.getLogger("shoal").setLevel(logging.INFO)


def note_request(method: str, path: str, status: int, seconds: float, user: str | None) -> None:
    facts = {"method": method, "path": path, "status": status, "ms": round(seconds * 1000, 1), "user": user}
    _requests.info("request", extra={"facts": facts})
