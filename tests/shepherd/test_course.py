"""The shipper's arithmetic, without a server: what is sent, what is told, and what that means for the next piece."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal._lib import frames
from shoal.shepherd.course import Course
from shoal.shepherd.journal import Journal
from shoal.shepherd.spool import Stream


class Server:
    """What a log store does with a piece: overlap skipped, gap refused."""

    def __init__(self) -> None:
        self.data = bytearray()

    def take(self, offset: int, data: bytes) -> int:
        if offset <= len(self.data):
            self.data += data[len(self.data) - offset :]
        assert frames.whole(self.data) == len(self.data)
        return len(self.data)

    @property
    def lines(self) -> list[str]:
        return b"".join(payload for _, payload in frames.decode(bytes(self.data))).decode().splitlines()


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return Stream("worker-0", tmp_path / "worker-0", 1 << 20, Journal(tmp_path / "log"))


def ship(course: Course, server: Server) -> None:
    while (piece := course.next_piece(1 << 20)) is not None:
        course.settle(server.take(*piece))


def fill(stream: Stream, size: int, name: str) -> None:
    for number in range(size // 10_000):
        stream.write(f"{name} {number} {'x' * 9980}\n".encode())


def test_lines_arrive_in_order(stream: Stream) -> None:
    course, server = Course(stream), Server()
    stream.write(b"one\n")
    stream.write(b"two\n")
    ship(course, server)
    assert server.lines == ["one", "two"]
    assert course.level


def test_what_the_server_has_leaves_the_disk(stream: Stream) -> None:
    course, server = Course(stream), Server()
    fill(stream, 600_000, "a")
    before = sum(1 for _ in stream.folder.iterdir())
    ship(course, server)
    assert sum(1 for _ in stream.folder.iterdir()) < before


def test_a_request_without_an_answer_is_neither_lost_nor_doubled(stream: Stream) -> None:
    course, server = Course(stream), Server()
    stream.write(b"one\n")
    piece = course.next_piece(1 << 20)
    assert piece is not None
    server.take(*piece)  # it arrived, but nobody told us
    stream.write(b"two\n")
    course.settle(server.take(course.settled_at, b""))
    ship(course, server)
    assert server.lines == ["one", "two"]


def test_a_server_that_lost_its_end_gets_it_again(stream: Stream) -> None:
    course, server = Course(stream), Server()
    stream.write(b"one\n")
    ship(course, server)
    server.data.clear()
    stream.write(b"two\n")
    ship(course, server)
    assert server.lines == ["one", "two"]


def test_a_part_the_spool_had_to_drop_is_one_line_on_the_server(stream: Stream) -> None:
    course, server = Course(stream), Server()
    fill(stream, 3_000_000, "a")
    ship(course, server)
    stream.write(b"last\n")
    ship(course, server)
    said = [line for line in server.lines if "dropped here" in line]
    assert len(said) == 1
    assert server.lines[0].startswith("a 0 ")
    assert server.lines[-1] == "last"
    assert course.level


def test_a_part_dropped_twice_is_told_twice_and_nothing_is_doubled(stream: Stream) -> None:
    course, server = Course(stream), Server()
    fill(stream, 3_000_000, "a")
    ship(course, server)
    fill(stream, 3_000_000, "b")
    ship(course, server)
    kept = [line.split(" x")[0] for line in server.lines if "dropped here" not in line]
    assert len(kept) == len(set(kept))
    assert kept[-1] == "b 299"


@pytest.mark.parametrize("arrived", [False, True])
def test_a_line_about_a_dropped_part_survives_a_lost_answer(stream: Stream, arrived: bool) -> None:
    course, server = Course(stream), Server()
    fill(stream, 3_000_000, "a")
    while True:
        piece = course.next_piece(1 << 20)
        assert piece is not None
        if b"dropped here" in piece[1]:
            break
        course.settle(server.take(*piece))
    if arrived:
        server.take(*piece)
    fill(stream, 500_000, "b")  # more is dropped while nobody knows
    course.settle(server.take(course.settled_at, b""))
    ship(course, server)
    assert [line.split(" x")[0] for line in server.lines][-1] == "b 49"
    assert course.level


def test_a_successor_goes_on_where_the_server_stands(stream: Stream) -> None:
    first, server = Course(stream), Server()
    fill(stream, 3_000_000, "a")
    ship(first, server)
    stream.write(b"last\n")
    second = Course(stream)
    second.settle(server.take(0, b""))
    ship(second, server)
    assert server.lines[-1] == "last"
    assert len([line for line in server.lines if "dropped here" in line]) == 1


def test_a_server_that_has_more_than_the_spool_gets_what_comes_next(stream: Stream) -> None:
    course, server = Course(stream), Server()
    server.data += frames.pack(1, b"from before\n")
    stream.write(b"x\n")
    course.settle(server.take(0, b""))
    stream.write(b"new\n")
    ship(course, server)
    assert server.lines == ["from before", "new"]
