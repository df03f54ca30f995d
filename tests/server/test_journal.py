from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.server import journal


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield root
    for handler in root.handlers:
        if handler not in before[0]:
            handler.close()
    root.handlers[:], root.level = before


def test_a_request_is_one_json_line(tmp_path: Path, root: logging.Logger) -> None:
    journal.open_journal(tmp_path / "server.log")
    journal.note_request("GET", "/api/v1/jobs", 200, 0.0123, "ann")
    line = json.loads((tmp_path / "server.log").read_text())
    assert {key: line[key] for key in ("method", "path", "status", "ms", "user")} == {
        "method": "GET",
        "path": "/api/v1/jobs",
        "status": 200,
        "ms": 12.3,
        "user": "ann",
    }
    assert (tmp_path / "server.log").stat().st_mode & 0o777 == 0o600


def test_a_traceback_stays_on_its_line(tmp_path: Path, root: logging.Logger) -> None:
    journal.open_journal(tmp_path / "server.log")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("shoal.server").exception("incident")
    lines = (tmp_path / "server.log").read_text().splitlines()
    assert len(lines) == 1
    assert "ValueError: two\nlines" in json.loads(lines[0])["traceback"]


def test_the_log_is_turned_over_by_size_and_three_files_are_kept(
    tmp_path: Path, root: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "LARGEST", 2000)
    journal.open_journal(tmp_path / "server.log")
    for number in range(200):
        journal.note_request("GET", f"/{number}", 200, 0.0, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["server.log", "server.log.1", "server.log.2"]
    assert all(path.stat().st_size <= 2000 for path in tmp_path.iterdir())
