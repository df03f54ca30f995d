from __future__ import annotations

from shoal.shepherd.lines import LONGEST_LINE, STATE_EVERY, Lines


def feed_all(*pieces: bytes, seen: list[bytes] | None = None) -> bytes:
    lines = Lines((seen if seen is not None else []).append)
    return b"".join([lines.feed(piece, 0.0) for piece in pieces]) + lines.finish()


def test_whole_lines_pass_unchanged() -> None:
    assert Lines([].append).feed(b"one\ntwo\n", 0.0) == b"one\ntwo\n"


def test_an_unfinished_line_waits_for_its_end() -> None:
    lines = Lines([].append)
    assert lines.feed(b"one\ntw", 0.0) == b"one\n"
    assert lines.feed(b"o", 0.0) == b""
    assert lines.feed(b"\nthree", 0.0) == b"two\n"
    assert lines.finish() == b"three\n"


def test_nothing_comes_of_nothing() -> None:
    assert feed_all() == b""


def test_empty_lines_are_kept() -> None:
    assert feed_all(b"\n\na\n\n") == b"\n\na\n\n"


def test_a_carriage_return_before_a_newline_is_part_of_the_newline() -> None:
    assert feed_all(b"a\r\nb\r\n\r\nc\r", b"\nd") == b"a\nb\n\nc\nd\n"


def test_only_the_last_state_of_an_overwritten_line_counts() -> None:
    assert feed_all(b"\r 10%", b"\r 20%", b"\r100%\n", b"after\n") == b"100%\nafter\n"


def test_a_bar_that_returns_at_its_end_counts_the_same() -> None:
    assert feed_all(b"10%\r", b"20%\r", b"100%\r", b"\n") == b"100%\n"


def test_a_bar_that_never_ends_its_line_keeps_its_last_state() -> None:
    assert feed_all(b"\r10%", b"\r20%") == b"20%\n"


def test_a_line_that_was_cleared_leaves_nothing() -> None:
    assert feed_all(b"\r50%", b"\r    \r", b"done\n") == b"done\n"
    assert feed_all(b"\r50%", b"\r    \r") == b""


def test_text_before_a_bar_in_the_same_piece_is_kept() -> None:
    assert feed_all(b"start\n\r 1%\r 2%\r 3%\nend\n") == b"start\n 3%\nend\n"


def test_the_state_of_a_moving_line_comes_out_now_and_then() -> None:
    lines = Lines([].append)
    out = [lines.feed(b"\r%d" % second, float(second)) for second in range(1, 14)]
    assert [line for line in out if line] == [b"6\n", b"11\n"]
    assert lines.finish() == b"13\n"


def test_a_bar_that_stalls_shows_its_state_once() -> None:
    lines = Lines([].append)
    lines.feed(b"\r1%\r2%", 0.0)
    assert lines.moving
    assert lines.tick(STATE_EVERY - 0.1) == b""
    assert lines.tick(STATE_EVERY) == b"2%\n"
    assert lines.tick(10 * STATE_EVERY) == b""
    assert lines.feed(b"\n", 11 * STATE_EVERY) == b""


def test_a_line_longer_than_a_frame_comes_out_in_parts_without_cutting_a_character() -> None:
    text = "ü" * LONGEST_LINE
    out = feed_all(*[text.encode()[at : at + 1000] for at in range(0, 2 * LONGEST_LINE, 1000)])
    parts = out.decode().split("\n")
    assert "".join(parts) == text
    assert all(len(part.encode()) < LONGEST_LINE for part in parts)


def test_ten_thousand_dots_are_one_line() -> None:
    assert feed_all(*[b"."] * 10_000) == b"." * 10_000 + b"\n"


def test_progress_lines_are_seen_and_kept() -> None:
    seen: list[bytes] = []
    assert feed_all(b"a\nprogress 1/2\npro", b"gress 2/2\n", seen=seen) == b"a\nprogress 1/2\nprogress 2/2\n"
    assert seen == [b"progress 1/2", b"progress 2/2"]


def test_progress_lines_with_windows_newlines_are_seen() -> None:
    seen: list[bytes] = []
    feed_all(b"progress 1/2\r\n", seen=seen)
    assert seen == [b"progress 1/2"]


def test_states_of_bars_are_seen() -> None:
    seen: list[bytes] = []
    feed_all(b"\r 45%|##  |", b"\r 50%|## |", seen=seen)
    assert seen[-1] == b" 50%|## |"


def test_the_tail_is_the_end_of_what_came_out() -> None:
    lines = Lines([].append)
    for number in range(2000):
        lines.feed(b"line %d\n" % number, 0.0)
    assert len(lines.tail) <= 4096
    assert lines.tail.endswith("line 1998\nline 1999\n")


def test_the_tail_does_not_begin_within_a_character() -> None:
    lines = Lines([].append)
    lines.feed("€".encode() * 3000 + b"\n", 0.0)
    assert set(lines.tail) == {"€", "\n"}
