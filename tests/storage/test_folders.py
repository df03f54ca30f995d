from __future__ import annotations

import os
from pathlib import Path

import pytest

from shoal import errors
from shoal.storage.folders import folder_size, list_folder, open_inside


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A job's folder with everything a job might place in it, and a secret beside it."""
    (tmp_path / "secret").write_text("secret")
    root = tmp_path / "work"
    (root / "out" / "deep").mkdir(parents=True)
    (root / "model.bin").write_bytes(b"12345")
    (root / "out" / "a.txt").write_bytes(b"aaa")
    (root / "inside").symlink_to("out/a.txt")
    (root / "folder").symlink_to("out")
    (root / "absolute").symlink_to(root / "model.bin")
    (root / "outside").symlink_to("../secret")
    (root / "parent").symlink_to("..")
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "pipe")
    return root


def read(root: Path, path: str) -> bytes:
    with open_inside(root, path) as file:
        return file.read()


def test_files_and_links_to_files_inside_are_served(work: Path) -> None:
    assert read(work, "model.bin") == b"12345"
    assert read(work, "out/a.txt") == b"aaa"
    assert read(work, "inside") == b"aaa"
    assert read(work, "folder/a.txt") == b"aaa"
    assert read(work, "absolute") == b"12345"
    assert read(work, "out/../model.bin") == b"12345"


@pytest.mark.parametrize(
    "path",
    ["outside", "parent/secret", "../secret", "out/../../secret", "loop", "pipe", "out", "", "none", "model.bin/x",
     "a\0b", "/etc/passwd", "\ud800", "x" * 300, "x" * 5000],
)  # fmt: skip
def test_nothing_else_is(work: Path, path: str) -> None:
    with pytest.raises(errors.NotFound, match="list the folder"):
        open_inside(work, path)


def test_a_listing_shows_links_for_what_they_are(work: Path) -> None:
    items = {item.path: item for item in list_folder(work).items}
    assert sorted(items) == sorted(path.name for path in work.iterdir())
    assert (items["model.bin"].size, items["model.bin"].dir) == (5, False)
    assert items["out"].dir
    assert (items["inside"].size, items["inside"].link) == (3, None)
    assert items["outside"].link == "../secret"
    assert items["folder"].link == "out"
    assert items["loop"].link == "loop"
    assert not any(item.dir for item in items.values() if item.link)


def test_a_listing_below_gives_paths_from_the_root(work: Path) -> None:
    assert [item.path for item in list_folder(work, "out").items] == ["out/a.txt", "out/deep"]
    assert [item.path for item in list_folder(work, "/out/").items] == ["out/a.txt", "out/deep"]
    for path in ("parent", "..", "model.bin", "none"):
        with pytest.raises(errors.NotFound):
            list_folder(work, path)


@pytest.mark.parametrize("limit", [1, 2, 9, 100])
def test_pages_join_to_the_whole_listing(work: Path, limit: int) -> None:
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = list_folder(work, "", cursor, limit)
        found += [item.path for item in page.items]
        cursor = page.next
        if cursor is None:
            break
    assert found == sorted(path.name for path in work.iterdir())


def test_names_that_are_not_utf_8_can_be_listed_and_opened(work: Path) -> None:
    (work / os.fsdecode(b"caf\xe9")).write_bytes(b"!")
    shown = next(item.path for item in list_folder(work).items if item.path.startswith("caf"))
    shown.encode()
    assert read(work, shown) == b"!"


def test_the_size_counts_files_and_follows_no_link(work: Path) -> None:
    assert folder_size(work) == 8
    assert folder_size(work / "none") == 0
