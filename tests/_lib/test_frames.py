from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal._lib import frames, segments

times = st.integers(0, 2**64 - 1)
payloads = st.binary(min_size=1, max_size=200)


@given(st.lists(st.tuples(times, payloads)), st.integers(0, 300))
def test_frames_come_back_as_they_went_in_and_a_torn_one_is_left_out(blocks: list[tuple[int, bytes]], cut: int) -> None:
    encoded = [frames.encode(*block) for block in blocks]
    stream = b"".join(encoded)
    torn = stream[: max(0, len(stream) - cut)]
    kept = list(frames.decode(torn))
    assert kept == blocks[: len(kept)]
    assert frames.whole(torn) == sum(map(len, encoded[: len(kept)]))
    assert len(kept) == len(blocks) or len(torn) < sum(map(len, encoded[: len(kept) + 1]))


@given(st.lists(payloads, min_size=1), st.integers(0, 1000))
def test_whole_within_a_limit_is_the_longest_run_of_frames_that_fits(texts: list[bytes], limit: int) -> None:
    encoded = [frames.encode(1, text) for text in texts]
    length = frames.whole(memoryview(b"".join(encoded)), limit)
    ends = [sum(map(len, encoded[:count])) for count in range(len(encoded) + 1)]
    assert length == max(end for end in ends if end <= limit)


@given(st.lists(st.binary(max_size=50)), st.integers(0, 3), st.booleans())
def test_pack_loses_no_byte_of_text_and_makes_whole_lines(pieces: list[bytes], long_lines: int, newline: bool) -> None:
    text = b"\n".join(pieces + [b"y" * (frames.MAX_PAYLOAD + 7)] * long_lines) + b"\n" * newline
    found = [payload for _, payload in frames.decode(frames.pack(5, text))]
    assert all(payload.endswith(b"\n") and len(payload) <= frames.MAX_PAYLOAD for payload in found)
    assert b"".join(found).replace(b"\n", b"") == text.replace(b"\n", b"")


def test_pack_never_cuts_a_character_in_two() -> None:
    text = "鱼" * 60_000
    found = [payload.decode("utf-8") for _, payload in frames.decode(frames.pack(1, text.encode()))]
    assert "".join(line.rstrip("\n") for line in found) == text


def test_pack_of_bytes_that_are_not_text_still_ends() -> None:
    found = b"".join(payload for _, payload in frames.decode(frames.pack(1, b"\x80" * 200_000)))
    assert found.count(b"\x80") == 200_000


@pytest.mark.parametrize("payload", [b"", b"x" * (frames.MAX_PAYLOAD + 1)])
def test_a_frame_of_impossible_length_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError, match="65536"):
        frames.encode(1, payload)


def test_zeros_left_by_a_power_cut_are_not_frames() -> None:
    good = frames.encode(1, b"line\n")
    assert frames.whole(good + bytes(4096)) == len(good)
    assert list(frames.decode(good + bytes(4096))) == [(1, b"line\n")]


@pytest.mark.parametrize("module", [frames, segments])
def test_the_shepherds_modules_are_python_3_9(module: object) -> None:
    ast.parse(Path(str(module.__file__)).read_text(), feature_version=(3, 9))  # type: ignore[attr-defined]
