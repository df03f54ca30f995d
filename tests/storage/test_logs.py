from __future__ import annotations

import resource
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal import errors
from shoal._lib import frames
from shoal._lib.segments import Segments
from shoal.storage import logs, sieve
from shoal.storage.logs import LogStore


def fill(store: LogStore, stream: str, blocks: list[tuple[int, bytes]], job: str = "job", attempt: int = 1) -> int:
    end = store.ends(job, attempt).get(stream, 0)
    return store.append(job, attempt, stream, end, b"".join(frames.encode(at, text) for at, text in blocks))


def texts(store: LogStore, job: str = "job", **asked: object) -> list[str]:
    return [text for batch in store.read_lines(job, **asked) for _, _, text in batch.lines]  # type: ignore[arg-type]


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 80), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=30),
)
def test_pieces_repeated_overlapping_or_ahead_make_the_stream_exactly_once(
    lengths: list[int], pieces: list[tuple[int, int]]
) -> None:
    blocks = [frames.encode(number, b"x" * length + b"\n") for number, length in enumerate(lengths)]
    bounds = [sum(map(len, blocks[:count])) for count in range(len(blocks) + 1)]
    whole = b"".join(blocks)
    with TemporaryDirectory() as folder:
        store = LogStore(folder)
        end = 0
        for low, high in [*pieces, (0, len(blocks))]:
            low, high = sorted((min(low, len(blocks)), min(high, len(blocks))))
            offset, data = bounds[low], whole[bounds[low] : bounds[high]]
            if offset > end and data:
                with pytest.raises(errors.OffsetGap) as caught:
                    store.append("job", 1, "worker-0", offset, data)
                assert caught.value.expected == end
            elif data:
                end = max(end, bounds[high])
                assert store.append("job", 1, "worker-0", offset, data) == end
            if low % 5 == 0:
                store.close()
                store = LogStore(folder)
        assert store.ends("job", 1) == {"worker-0": len(whole)}
        assert store.segments("job", 1, "worker-0").read(0, 10**6) == (0, whole)
        store.close()


def test_what_is_not_whole_frames_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    end = fill(store, "worker-0", [(1, b"a\n")])
    good = frames.encode(2, b"more\n")
    for offset, data in [(end, good[:-1]), (end, b"rubbish that is no frame at all"), (end - 3, good + good)]:
        with pytest.raises(errors.BadChunk, match="not whole frames"):
            store.append("job", 1, "worker-0", offset, data)
    assert store.ends("job", 1) == {"worker-0": end}


def test_an_empty_piece_asks_where_the_stream_ends_and_changes_nothing(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    assert store.append("job", 1, "worker-0", 0, b"") == 0
    assert store.streams("job") == []
    end = fill(store, "worker-0", [(1, b"a\n")])
    assert store.append("job", 1, "worker-0", 3, b"") == end
    with pytest.raises(errors.OffsetGap) as caught:
        store.append("job", 1, "worker-0", end + 9, b"")
    assert caught.value.expected == end


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "a\n", "x" * 200])
def test_names_that_could_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    store = LogStore(tmp_path)
    with pytest.raises(errors.BadSpec, match="cannot name a log"):
        store.append(name, 1, "worker-0", 0, b"")
    with pytest.raises(errors.BadSpec):
        store.append("job", 1, name, 0, b"")
    with pytest.raises(errors.BadSpec):
        store.drop(name)
    assert list(tmp_path.iterdir()) == []


def test_a_long_log_keeps_head_and_tail_within_the_limit(tmp_path: Path) -> None:
    limit = 256 * 1024
    store = LogStore(tmp_path, limit_bytes=limit)
    for number in range(1000):
        fill(store, "worker-0", [(number, f"line {number} {'x' * 1000}\n".encode())])
    kept = sum(path.stat().st_size for path in tmp_path.rglob("*.seg"))
    assert limit * 3 // 4 < kept <= limit
    lines = texts(store)
    gap = next(index for index, line in enumerate(lines) if line.startswith("…"))
    assert [int(line.split()[1]) for line in lines[:gap]] == list(range(gap))
    assert [int(line.split()[1]) for line in lines[gap + 1 :]] == list(range(1000 - len(lines) + gap + 1, 1000))
    assert gap > 40
    assert "dropped here: the log limit" in lines[gap]
    assert len(lines) - gap > 150


def test_a_disk_that_refuses_raises_its_own_error_and_the_sender_goes_on(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    end = fill(store, "worker-0", [(1, b"first\n")])
    large = frames.encode(2, b"y" * 50_000 + b"\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(OSError):
            store.append("job", 1, "worker-0", end, large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.ends("job", 1) == {"worker-0": end}
    assert store.append("job", 1, "worker-0", end, large) == end + len(large)
    assert texts(store) == ["first", "y" * 50_000]


def test_streams_and_ends_know_every_attempt(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    for attempt, stream in [(2, "worker-0"), (1, "worker-10"), (1, "worker-2"), (10, "server-0")]:
        fill(store, stream, [(1, b"x\n")], attempt=attempt)
    assert store.streams("job") == [(1, "worker-2"), (1, "worker-10"), (2, "worker-0"), (10, "server-0")]
    assert store.ends("job", 1) == {"worker-2": 14, "worker-10": 14}
    assert store.ends("job", 1, ["worker-2", "worker-99"]) == {"worker-2": 14}
    assert store.streams("other") == []
    assert store.ends("other", 1) == {}
    assert texts(store, "other") == []
    assert not (tmp_path / "other").exists()


def test_dropping_a_job_deletes_it_and_a_reader_left_behind_does_not_bring_it_back(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    fill(store, "worker-0", [(1, b"x\n")])
    fill(store, "worker-0", [(1, b"x\n")], job="other")
    reader = store.follow("job")
    assert reader.poll() is not None
    store.drop("job")
    store.drop("job")
    assert reader.poll() is None
    assert store.streams("job") == []
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_more_streams_than_handles_and_memory_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_OPEN_FILES", 3)
    monkeypatch.setattr(logs, "_KNOWN_STREAMS", 5)
    store = LogStore(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(5):
        for rank in range(20):
            fill(store, f"worker-{rank}", [(number, f"{rank} {number}\n".encode())])
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 3
    for rank in range(20):
        assert texts(store, streams=[f"worker-{rank}"]) == [f"{rank} {number}" for number in range(5)]
    store.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_many_threads_append_at_once_and_repeat_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_OPEN_FILES", 2)
    monkeypatch.setattr(logs, "_KNOWN_STREAMS", 3)
    store = LogStore(tmp_path)
    blocks = [frames.encode(number, b"%d\n" % number) for number in range(100)]

    def send(rank: int) -> None:
        at = 0
        for block in blocks:
            store.append("job", 1, f"worker-{rank}", at, block)
            at += len(block)

    threads = [Thread(target=send, args=(number % 6,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in range(6):
        assert texts(store, streams=[f"worker-{rank}"]) == [str(number) for number in range(100)]
    store.close()


def test_the_version_tells_of_new_lines_without_a_look_at_the_disk(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    before = store.version("job")
    block = frames.encode(1, b"x\n")
    store.append("job", 1, "worker-0", 0, block)
    after = store.version("job")
    assert after > before
    store.append("job", 1, "worker-0", 0, block)
    assert store.version("job") == after


def test_the_last_lines_of_a_large_log_are_found_without_reading_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LogStore(tmp_path, limit_bytes=4 << 20)
    for number in range(300):
        fill(store, "worker-0", [(number, f"{number} {'x' * 9000}\n".encode())])
    read_bytes = 0
    real = Segments.read

    def counted(self: Segments, offset: int, limit: int) -> tuple[int, bytes]:
        nonlocal read_bytes
        found = real(self, offset, limit)
        read_bytes += len(found[1])
        return found

    monkeypatch.setattr(Segments, "read", counted)
    assert [line.split()[0] for line in texts(store, tail=3)] == ["297", "298", "299"]
    assert read_bytes < 600_000
    read_bytes = 0
    assert [line.split()[0] for line in texts(store, since_us=298)] == ["298", "299"]
    assert read_bytes < 600_000
    assert [line.split()[0] for line in texts(store, tail=2, grep=partial(sieve.find, "^1.5 "))] == ["185", "195"]
