from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal._lib import frames
from shoal._lib.segments import Segments

appends = st.lists(st.lists(st.integers(1, 120), min_size=1, max_size=6), max_size=25)


def block(number: int, length: int) -> bytes:
    """A frame that can be told from every other one."""
    return frames.encode(number, f"{number}:".encode().ljust(length, b"x")[: max(length, 8)] + b"\n")


def written(segments: Segments, plan: list[list[int]], first: int = 0) -> list[bytes]:
    done: list[bytes] = []
    for lengths in plan:
        batch = [block(first + len(done) + index, length) for index, length in enumerate(lengths)]
        segments.append(b"".join(batch))
        done += batch
    return done


def everything(segments: Segments, at: int = 0, limit: int = 100) -> tuple[list[tuple[int, int]], dict[int, bytes]]:
    """The gaps met on the way and each frame by its offset."""
    gaps: list[tuple[int, int]] = []
    found: dict[int, bytes] = {}
    while True:
        real, data = segments.read(at, limit)
        if not data:
            return gaps, found
        if real > at:
            gaps.append((at, real))
        assert frames.whole(data) == len(data)
        at = real
        for at_us, payload in frames.decode(data):
            found[at] = frames.encode(at_us, payload)
            at += len(found[at])


def offsets(blocks: list[bytes]) -> list[int]:
    return [sum(map(len, blocks[:count])) for count in range(len(blocks) + 1)]


@settings(deadline=None)
@given(appends, st.integers(1, 600), st.integers(1, 400))
def test_what_was_appended_is_read_from_any_boundary_with_any_limit(
    plan: list[list[int]], segment_bytes: int, limit: int
) -> None:
    with TemporaryDirectory() as folder:
        segments = Segments(folder, segment_bytes=segment_bytes)
        blocks = written(segments, plan)
        bounds = offsets(blocks)
        assert (segments.start, segments.end, segments.gaps) == (0, bounds[-1], [])
        for reader in (segments, Segments(folder), Segments(folder, writer=False)):
            assert reader.end == bounds[-1]
            for index in range(0, len(bounds), 5):
                gaps, found = everything(reader, bounds[index], limit)
                assert not gaps
                assert found == dict(zip(bounds[index:], blocks[index:], strict=False))
        segments.close()


@settings(deadline=None)
@given(
    appends.filter(bool),
    st.integers(1, 600),
    st.integers(0, 400),
    st.sampled_from([b"", bytes(50), frames.encode(9, b"z" * 64)[:40]]),
    appends,
)
def test_a_torn_write_costs_only_the_torn_frames_and_the_stream_goes_on(
    plan: list[list[int]], segment_bytes: int, cut: int, rubbish: bytes, more: list[list[int]]
) -> None:
    with TemporaryDirectory() as folder:
        segments = Segments(folder, segment_bytes=segment_bytes)
        blocks = written(segments, plan)
        last_start = segments.spans[-1][0]
        segments.close()
        last = max(Path(folder).iterdir())
        torn = last.read_bytes()[: max(0, last.stat().st_size - cut)]
        whole = frames.whole(torn)
        # Behind whole frames: a half-written one, or the zeros that a power cut leaves.
        last.write_bytes(torn + rubbish if whole == len(torn) else torn)
        end = last_start + whole
        kept = [piece for piece, stop in zip(blocks, offsets(blocks)[1:], strict=True) if stop <= end]

        watching = Segments(folder, writer=False)
        assert watching.end == end
        again = Segments(folder, segment_bytes=segment_bytes)
        assert again.end == end
        kept += written(again, more, first=1000)
        for reader in (again, watching):
            assert everything(reader) == ([], dict(zip(offsets(kept), kept, strict=False)))
        again.close()


@settings(deadline=None)
@given(appends, st.integers(50, 400), st.integers(0, 900), st.integers(0, 900))
def test_head_and_tail_stay_and_only_the_declared_gap_is_gone(
    plan: list[list[int]], segment_bytes: int, head: int, tail: int
) -> None:
    with TemporaryDirectory() as folder:
        segments = Segments(folder, segment_bytes=segment_bytes, keep_head=head, keep_tail=tail)
        blocks = written(segments, plan)
        bounds = offsets(blocks)
        gaps, found = everything(segments)
        gone = segments.gaps if segments.start == 0 else [(0, segments.start), *segments.gaps]
        assert gaps == gone
        assert segments.end == bounds[-1]
        inside = {
            at: piece
            for at, piece in zip(bounds, blocks, strict=False)
            if not any(low <= at < high for low, high in gone)
        }
        assert found == inside
        spans = segments.spans
        kept_tail = [high - low for low, high in spans if high > head]
        assert len(kept_tail) <= 1 or sum(kept_tail) <= tail
        largest = max([segment_bytes, *map(len, blocks)])
        for low, high in gone:
            assert low >= min(head, bounds[-1]) - largest
            assert bounds[-1] - high >= tail - 2 * largest
        segments.close()


def test_drop_before_deletes_only_what_was_acknowledged_and_keeps_the_end(tmp_path: Path) -> None:
    segments = Segments(tmp_path, segment_bytes=100)
    blocks = written(segments, [[60]] * 5)
    bounds = offsets(blocks)
    segments.drop_before(bounds[2] + 1)
    assert segments.start == bounds[2]
    segments.drop_before(bounds[-1])
    assert segments.start == bounds[4]
    segments.close()
    assert Segments(tmp_path).end == bounds[-1]


def test_a_frame_larger_than_the_limit_is_read_whole(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    large = block(1, 5000)
    segments.append(large + block(2, 10))
    assert segments.read(0, 1) == (0, large)
    assert segments.read(0, 20) == (0, large)
    segments.close()


def test_anything_but_whole_frames_is_refused(tmp_path: Path) -> None:
    segments = Segments(tmp_path)
    with pytest.raises(ValueError, match="whole frames"):
        segments.append(block(1, 50)[:-1])
    assert segments.end == 0


def test_looking_at_a_stream_that_is_not_there_leaves_no_trace(tmp_path: Path) -> None:
    absent = Segments(tmp_path / "absent")
    assert (absent.start, absent.end, absent.read(0, 10)) == (0, 0, (0, b""))
    absent.sync()
    assert not (tmp_path / "absent").exists()


def test_a_disk_that_refuses_leaves_the_stream_as_it_was(tmp_path: Path) -> None:
    segments = Segments(tmp_path, segment_bytes=1_000_000)
    before = [block(1, 30_000), block(2, 30_000)]
    segments.append(b"".join(before))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (70_000, hard))
    try:
        with pytest.raises(OSError):
            segments.append(block(3, 5_000) + block(4, 60_000))
        assert everything(segments)[1] == dict(zip(offsets(before), before, strict=False))
        assert everything(Segments(tmp_path, writer=False)) == everything(segments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    after = [*before, block(5, 60_000), block(6, 10)]
    segments.append(after[2])
    segments.append(after[3])
    assert everything(segments)[1] == dict(zip(offsets(after), after, strict=False))
    segments.close()


def test_a_refusal_in_the_second_file_takes_back_the_first(tmp_path: Path) -> None:
    segments = Segments(tmp_path, segment_bytes=50_000)
    first = block(1, 30_000)
    segments.append(first)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (55_000, hard))
    try:
        with pytest.raises(OSError):
            segments.append(block(2, 10_000) + block(3, 60_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert segments.end == len(first)
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [len(first)]
    segments.append(block(4, 10))
    assert everything(segments)[1] == {0: first, len(first): block(4, 10)}
    segments.close()


def test_synced_bytes_and_a_closed_stream_go_on(tmp_path: Path) -> None:
    segments = Segments(tmp_path, segment_bytes=100)
    blocks = written(segments, [[60]] * 3)
    segments.sync()
    segments.close()
    segments.close()
    blocks.append(block(9, 60))
    segments.append(blocks[-1])
    assert everything(segments)[1] == dict(zip(offsets(blocks), blocks, strict=False))
    segments.close()


def test_a_reader_beside_the_writer_sees_only_whole_frames(tmp_path: Path) -> None:
    segments = Segments(tmp_path, segment_bytes=4000, keep_head=2000, keep_tail=20_000)
    total = 400
    writer = Thread(target=written, args=(segments, [[300, 40, 120]] * total))
    writer.start()
    at = 0
    numbers: list[int] = []
    while len(numbers) == 0 or numbers[-1] < 3 * total - 1:
        real, data = segments.read(at, 700)
        assert frames.whole(data) == len(data)
        numbers += [at_us for at_us, _ in frames.decode(data)]
        at = real + len(data) if data else at
    writer.join()
    assert numbers == sorted(set(numbers))
    segments.close()


def test_a_reader_in_another_process_follows_to_the_end(tmp_path: Path) -> None:
    total = 300
    script = (
        "import sys; from shoal._lib import frames; from shoal._lib.segments import Segments\n"
        f"stream = Segments({str(tmp_path)!r}, segment_bytes=5000)\n"
        f"for number in range({total}): stream.append(frames.encode(number, b'x' * 200 + b'\\n'))\n"
    )
    reader = Segments(tmp_path, writer=False)
    writer = subprocess.Popen([sys.executable, "-c", script])
    at = 0
    numbers: list[int] = []
    while len(numbers) < total:
        over = writer.poll() is not None
        real, data = reader.read(at, 1000)
        assert real == at
        numbers += [at_us for at_us, _ in frames.decode(data)]
        at += len(data)
        assert data or not over, "the writer is gone and frames are missing"
    assert writer.wait() == 0
    assert numbers == list(range(total))
