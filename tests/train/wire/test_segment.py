"""Shared memory as a file of our own: the same bytes for whoever opens it, and room asked for before it is used."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from shoal.train.errors import NoRoom
from shoal.train.wire import segment
from shoal.train.wire.segment import PAGE, Segment


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "one"


def test_all_who_open_it_see_the_same_bytes(path: Path) -> None:
    one, other = Segment.create(path, 1000), Segment.open(path)
    one.tensor(torch.float32, 16, 4).copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert other.array("float32", 16, 5).tolist() == [1.0, 2.0, 3.0, 4.0, 0.0]
    other.view(16, 4)[:] = bytes(4)
    assert one.tensor(torch.float32, 16, 2).tolist() == [0.0, 2.0]
    assert one.size == other.size == PAGE and other.path == path
    assert path.stat().st_mode & 0o777 == 0o600


@settings(deadline=None, max_examples=20)
@given(some.integers(0, 5 * PAGE))
def test_sizes_are_whole_pages(size: int) -> None:
    path = Path(f"/tmp/shoal-segment-{os.getpid()}")
    made = Segment.create(path, size, touch=True)
    try:
        assert made.size % PAGE == 0 and max(size, 1) <= made.size < size + PAGE + 1
        assert not any(made.view())
    finally:
        made.unlink()


def test_tensors_outlive_it(path: Path) -> None:
    one = Segment.create(path, 100)
    tensor, array = one.tensor(torch.int64, 8, 3), one.array("int64", 8, 3)
    one.close()
    one.close()
    one.unlink()
    one.unlink()
    tensor.fill_(7)
    assert array.tolist() == [7, 7, 7] and not path.exists()
    with pytest.raises(ValueError, match="is closed"):
        one.view()


def test_the_file_outlives_the_process_that_made_it(path: Path) -> None:
    Segment.create(path, 100).tensor(torch.uint8, 0, 3).fill_(9)
    assert Segment.open(path).tensor(torch.uint8, 0, 4).tolist() == [9, 9, 9, 0]


def test_a_fresh_one_takes_the_place_of_the_old(path: Path) -> None:
    old = Segment.create(path, 100)
    old.view()[:1] = b"x"
    fresh = Segment.create(path, 100)
    assert fresh.view()[:1] == b"\0" and Segment.open(path).view()[:1] == b"\0"
    assert old.view()[:1] == b"x"


def test_nothing_reaches_over_its_end(path: Path) -> None:
    one = Segment.create(path, PAGE)
    assert one.tensor(torch.float32, PAGE, 0).numel() == 0
    for offset, count in ((PAGE - 4, 2), (-4, 1), (0, PAGE), (0, -1)):
        with pytest.raises(ValueError, match=f"has {PAGE} bytes"):
            one.tensor(torch.float32, offset, count)
        with pytest.raises(ValueError, match=f"has {PAGE} bytes"):
            one.array("float32", offset, count)


def test_room_is_asked_for_first(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoRoom, match=r"no room for 1\d+\.\d MB of shared memory in .* is free; make the tmpfs larger"):
        Segment.create(path, 1 << 60)

    def full(file: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(segment.os, "posix_fallocate", full)
    with pytest.raises(NoRoom, match="less is free"):
        Segment.create(path, 100)
    assert not list(path.parent.iterdir())


def test_one_that_is_not_there(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Segment.open(path)


def test_an_address_is_that_of_the_byte(path: Path) -> None:
    one = Segment.create(path, 100)
    assert one.address(8) == one.address() + 8 == one.tensor(torch.uint8, 8, 1).data_ptr()
