from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal import errors
from shoal.storage.blobs import Blobs, FolderBlobs


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return FolderBlobs(tmp_path / "blobs")


def content(blobs: Blobs, key: str) -> bytes:
    with blobs.open(key) as file:
        return file.read()


def test_bytes_and_iterators_are_stored_and_replaced(blobs: Blobs) -> None:
    assert blobs.put("a/b", b"one") == 3
    assert blobs.put("a/b", iter([b"t", b"", b"wo!!"])) == 5
    assert content(blobs, "a/b") == b"two!!"
    assert blobs.size("a/b") == 5
    assert blobs.exists("a/b")
    assert not blobs.exists("a")


def test_a_broken_upload_leaves_what_was_there_and_no_rubbish(blobs: Blobs, tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise ConnectionError

    blobs.put("a/b", b"old")
    with pytest.raises(ConnectionError):
        blobs.put("a/b", broken())
    assert content(blobs, "a/b") == b"old"
    assert list((tmp_path / "blobs" / "tmp").iterdir()) == []


def test_keys_are_listed_by_prefix_in_order(blobs: Blobs) -> None:
    for key in ("x/b/2", "x/b/1", "x/c", "y/1"):
        blobs.put(key, b".")
    assert list(blobs.list()) == ["x/b/1", "x/b/2", "x/c", "y/1"]
    assert list(blobs.list("x/b")) == ["x/b/1", "x/b/2"]
    assert list(blobs.list("x/b/2")) == ["x/b/2"]
    assert list(blobs.list("none/")) == []


def test_deleting_twice_is_harmless_and_what_is_gone_is_not_found(blobs: Blobs) -> None:
    blobs.put("a", b"1")
    blobs.delete("a")
    blobs.delete("a")
    for ask in (blobs.open, blobs.size):
        with pytest.raises(errors.NotFound, match="'a'"):
            ask("a")


@pytest.mark.parametrize(
    "key", ["", "/etc/passwd", "../x", "a/../b", "a//b", "a/", ".x", "tmp/x", "a\0b", "a b", "x" * 2000]
)
def test_keys_that_are_not_plain_names_are_refused(blobs: Blobs, key: str) -> None:
    with pytest.raises(errors.BadSpec, match="cannot name a blob"):
        blobs.put(key, b"1")
    with pytest.raises(errors.BadSpec):
        blobs.open(key)
