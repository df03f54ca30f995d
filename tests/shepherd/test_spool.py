from __future__ import annotations

import time
from pathlib import Path

import pytest

from shoal._lib import frames
from shoal._lib.segments import Segments
from shoal.shepherd.journal import Journal
from shoal.shepherd.spool import Spool, Stream


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return Stream("worker-0", tmp_path / "worker-0", 1 << 20, Journal(tmp_path / "log"))


def lines(stream: Stream) -> bytes:
    found, at = b"", 0
    while True:
        at, data = stream.read(at, 1 << 20)
        if not data:
            return found
        found += b"".join(payload for _, payload in frames.decode(data))
        at += len(data)


def test_what_the_disk_refuses_is_counted_and_told_once(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    stream.write(b"before\n")
    with monkeypatch.context() as full:
        full.setattr(Segments, "append", refuse)
        stream.write(b"x" * 999 + b"\n")
        stream.write(b"y" * 1047 + b"\n")
    stream.write(b"after\n")
    stream.write(b"later\n")
    said = "… 2.0 KiB lost here: the disk of this node was full …\n".encode()
    assert lines(stream) == b"before\n" + said + b"after\nlater\n"


def test_a_clock_that_goes_back_does_not_turn_lines_around(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns()
    for at in (now, now - 3600 * 10**9, now + 1000):
        monkeypatch.setattr(time, "time_ns", lambda at=at: at)
        stream.write(b"line\n")
    _, data = stream.read(0, 1 << 20)
    times = [at for at, _ in frames.decode(data)]
    assert times == sorted(times)


def test_every_member_has_a_stream_for_lines_and_one_for_samples(tmp_path: Path) -> None:
    spool = Spool(tmp_path, ["worker-0", "server-1"], 1 << 20, Journal(tmp_path / "log"))
    assert [each.name for each in spool.streams] == ["worker-0", "worker-0.samples", "server-1", "server-1.samples"]
    spool.samples("server-1").write_json({"a": 1})
    assert lines(spool["server-1.samples"]) == b'{"a": 1}\n'


def test_a_journal_on_a_full_disk_stays_silent() -> None:
    Journal(Path("/dev/full")).note("nobody will read this")


def test_a_journal_says_the_same_thing_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "log")
    for text in ("away", "away", "back", "away"):
        journal.note(text)
    assert [line.split("] ")[1] for line in (tmp_path / "log").read_text().splitlines()] == ["away", "back", "away"]
