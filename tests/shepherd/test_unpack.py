from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from shoal.shepherd.unpack import BadArchive, unpack


def packed(*entries: tuple[str, str, str]) -> io.BytesIO:
    """(kind, name, content or target) of each entry."""
    kinds = {
        "file": tarfile.REGTYPE,
        "link": tarfile.SYMTYPE,
        "hard": tarfile.LNKTYPE,
        "dir": tarfile.DIRTYPE,
        "pipe": tarfile.FIFOTYPE,
    }
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for kind, name, content in entries:
            entry = tarfile.TarInfo(name)
            entry.type = kinds[kind]
            if kind == "file":
                entry.size = len(content.encode())
            else:
                entry.linkname = content
            archive.addfile(entry, io.BytesIO(content.encode()))
    buffer.seek(0)
    return buffer


def test_files_folders_and_links_arrive(tmp_path: Path) -> None:
    unpack(
        packed(("dir", "a", ""), ("file", "a/b/c.txt", "hello"), ("link", "a/l", "b/c.txt"), ("dir", ".", "")),
        tmp_path / "to",
    )
    assert (tmp_path / "to/a/l").read_text() == "hello"
    assert (tmp_path / "to/a/l").is_symlink()


def test_what_is_there_is_replaced(tmp_path: Path) -> None:
    for content in ("one", "two"):
        unpack(packed(("file", "f", content), ("link", "l", "f")), tmp_path)
    assert (tmp_path / "l").read_text() == "two"


@pytest.mark.parametrize(
    "entries",
    [
        [("file", "/etc/evil", "x")],
        [("file", "../evil", "x")],
        [("file", "a/../../evil", "x")],
        [("link", "l", "/etc/passwd")],
        [("link", "l", "../outside")],
        [("link", "a/l", "../../outside")],
        [("link", "up", "."), ("link", "up/up/l", "../outside")],
        [("hard", "h", "../outside")],
        [("pipe", "p", "")],
    ],
)
def test_nothing_gets_out(tmp_path: Path, entries: list[tuple[str, str, str]]) -> None:
    with pytest.raises(BadArchive):
        unpack(packed(*entries), tmp_path / "box" / "to")
    assert [path.name for path in (tmp_path / "box").iterdir()] == ["to"]


def test_a_link_that_was_there_before_does_not_lead_out(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "d").symlink_to(tmp_path)
    with pytest.raises(BadArchive, match="leads out"):
        unpack(packed(("file", "d/evil", "x")), tmp_path / "to")
    assert not (tmp_path / "evil").exists()


def test_something_else_than_a_tar_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadArchive, match="not a tar"):
        unpack(io.BytesIO(b"<html>" * 200), tmp_path)
