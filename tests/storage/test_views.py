from __future__ import annotations

import base64
import json
import zlib
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal import errors
from shoal._lib import frames
from shoal.storage import sieve, views
from shoal.storage.logs import LogStore
from shoal.storage.views import Line

# Per stream: blocks of (time, number of lines); times may go back, as clocks do.
blocks = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 4)), max_size=8)
streams = st.dictionaries(st.sampled_from(["worker-0", "worker-1", "worker-10", "server-0"]), blocks, max_size=4)


def logged(store: LogStore, plan: dict[str, list[tuple[int, int]]], attempt: int = 1) -> dict[str, list[Line]]:
    """Writes the plan; every line says where it belongs."""
    expected: dict[str, list[Line]] = {}
    for stream, rows in plan.items():
        expected[stream] = []
        for number, (at, count) in enumerate(rows):
            lines = [f"{attempt} {stream} {number}.{index}" for index in range(count)]
            end = store.ends("job", attempt).get(stream, 0)
            store.append("job", attempt, stream, end, frames.encode(at, "".join(f"{x}\n" for x in lines).encode()))
            expected[stream] += [(stream, at, line) for line in lines]
    return expected


def lines_of(store: LogStore, **asked: object) -> list[Line]:
    return [line for batch in store.read_lines("job", **asked) for line in batch.lines]  # type: ignore[arg-type]


@settings(deadline=None)
@given(streams, streams)
def test_streams_are_merged_by_time_and_attempts_follow_each_other(
    first: dict[str, list[tuple[int, int]]], second: dict[str, list[tuple[int, int]]]
) -> None:
    first, second = ({name: sorted(rows) for name, rows in plan.items()} for plan in (first, second))
    with TemporaryDirectory() as folder:
        store = LogStore(folder)
        one, two = logged(store, first, 1), logged(store, second, 2)
        found = lines_of(store)
        for attempt, expected in (("1", one), ("2", two)):
            mine = [line for line in found if line[2].startswith(attempt)]
            assert [at for _, at, _ in mine] == sorted(at for rows in expected.values() for _, at, _ in rows)
            for stream, rows in expected.items():
                assert [line for line in mine if line[0] == stream] == rows
        assert [line[2][0] for line in found] == sorted(line[2][0] for line in found)
        assert lines_of(store, attempt=2) == [line for line in found if line[2].startswith("2")]
        store.close()


@settings(deadline=None)
@given(streams, st.integers(1, 60), st.integers(0, 12) | st.none(), st.integers(0, 30) | st.none(), st.booleans())
def test_any_split_of_reading_gives_the_same_lines(
    plan: dict[str, list[tuple[int, int]]], batch_bytes: int, tail: int | None, since: int | None, search: bool
) -> None:
    asked = {"tail": tail, "since_us": since, "grep": partial(sieve.find, "[02]$") if search else None}
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        store = LogStore(folder, limit_bytes=64 * 1024)
        logged(store, plan)
        whole = lines_of(store, **asked)
        patch.setattr(views, "_BATCH_BYTES", batch_bytes)
        assert lines_of(store, **asked) == whole
        resumed: list[Line] = []
        cursor: str | None = None
        while batch := next(store.read_lines("job", cursor=cursor, **asked), None):  # type: ignore[arg-type]
            resumed += batch.lines
            cursor = batch.cursor
            store.close()
            store = LogStore(folder, limit_bytes=64 * 1024)
        assert resumed == whole
        store.close()


@settings(deadline=None)
@given(streams, st.integers(0, 15), st.booleans())
def test_the_tail_is_the_end_of_the_whole(plan: dict[str, list[tuple[int, int]]], tail: int, search: bool) -> None:
    plan = {name: sorted(rows) for name, rows in plan.items()}
    grep = partial(sieve.find, "[02]$") if search else None
    with TemporaryDirectory() as folder:
        store = LogStore(folder, limit_bytes=64 * 1024)
        logged(store, plan)
        whole = lines_of(store, grep=grep)
        assert lines_of(store, tail=tail, grep=grep) == (whole[-tail:] if tail else [])
        store.close()


@settings(deadline=None)
@given(streams, st.integers(0, 31))
def test_since_begins_each_stream_at_its_first_line_from_then_on(
    plan: dict[str, list[tuple[int, int]]], since: int
) -> None:
    plan = {name: sorted(rows) for name, rows in plan.items()}
    with TemporaryDirectory() as folder:
        store = LogStore(folder)
        logged(store, plan)
        assert lines_of(store, since_us=since) == [line for line in lines_of(store) if line[1] >= since]
        store.close()


@settings(deadline=None)
@given(st.lists(streams, max_size=6), st.integers(0, 5))
def test_a_follower_sees_each_line_once_also_of_streams_that_begin_later(
    rounds: list[dict[str, list[tuple[int, int]]]], restart: int
) -> None:
    with TemporaryDirectory() as folder:
        store = LogStore(folder)
        follower = store.follow("job")
        found: list[Line] = []
        expected: dict[str, list[Line]] = {}
        for number, plan in enumerate(rounds):
            for stream, rows in logged(store, plan).items():
                expected.setdefault(stream, []).extend(rows)
            if number == restart:
                follower = store.follow("job", cursor=follower.cursor)
            while batch := follower.poll():
                found += batch.lines
        assert follower.poll() is None
        for stream, rows in expected.items():
            assert [line for line in found if line[0] == stream] == rows
        assert len(found) == sum(map(len, expected.values()))
        store.close()


def test_following_from_now_on_shows_only_what_comes_after(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    logged(store, {"worker-0": [(1, 3)]})
    follower = store.follow("job", tail=0)
    logged(store, {"worker-0": [(2, 1)], "worker-1": [(0, 1)]})
    batch = follower.poll()
    assert batch is not None
    assert [at for _, at, _ in batch.lines] == [0, 2]


def test_samples_are_shown_only_when_named(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    logged(store, {"worker-0": [(1, 1)], "worker-0.samples": [(1, 1)], "worker-1": [(2, 1)]})
    assert [line[0] for line in lines_of(store)] == ["worker-0", "worker-1"]
    assert [line[0] for line in lines_of(store, streams=["worker-0.samples"])] == ["worker-0.samples"]
    assert lines_of(store, streams=["worker-7"]) == []


def test_text_that_is_not_utf_8_or_has_carriage_returns_stays_one_line(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    store.append("job", 1, "worker-0", 0, frames.encode(1, b"10%\r20%\rdone\n\nca\xff\x0b\xe9\n"))
    assert [line[2] for line in lines_of(store)] == ["10%\r20%\rdone", "", "ca\ufffd\x0b\ufffd"]


def test_a_cursor_into_a_part_dropped_since_shows_the_gap_once(tmp_path: Path) -> None:
    store = LogStore(tmp_path, limit_bytes=64 * 1024)
    logged(store, {"worker-0": [(1, 1)]})
    reader = store.follow("job")
    assert reader.poll() is not None
    for number in range(400):
        end = store.ends("job", 1)["worker-0"]
        store.append("job", 1, "worker-0", end, frames.encode(2, b"%d " % number + b"x" * 1000 + b"\n"))
    lines = lines_of(store, cursor=reader.cursor)
    marks = [index for index, line in enumerate(lines) if "dropped here" in line[2]]
    assert len(marks) == 1
    assert lines[-1][2].startswith("399 ")
    half = store.follow("job", cursor=reader.cursor)
    polled: list[Line] = []
    while batch := half.poll():
        polled += batch.lines
    assert polled == lines


def test_an_empty_search_still_moves_on(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    logged(store, {"worker-0": [(1, 3)]})
    (batch,) = store.read_lines("job", grep=partial(sieve.find, "nothing"))
    assert batch.lines == []
    assert list(store.read_lines("job", cursor=batch.cursor)) == []


def packed(raw: object) -> str:
    return base64.urlsafe_b64encode(zlib.compress(json.dumps(raw).encode())).decode()


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "%%%", "é", "AAAA", packed({"a": 1}), packed([[1]]), packed([[1, "w", -1, 0]]), packed(7),
     packed([[1, "w", "1", 0]]), packed([["1", [], 0, 0]])],
)  # fmt: skip
def test_a_cursor_that_is_not_ours_is_refused(tmp_path: Path, cursor: str) -> None:
    with pytest.raises(errors.BadSpec, match="not a cursor"):
        LogStore(tmp_path).follow("job", cursor=cursor)


def test_ranks_sort_as_people_count() -> None:
    names = ["worker-10", "worker-2", "server-0", "worker-2.samples", "chief"]
    assert sorted(names, key=views.natural) == ["chief", "server-0", "worker-2", "worker-2.samples", "worker-10"]
