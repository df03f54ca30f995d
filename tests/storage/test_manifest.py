from __future__ import annotations

import io
import tarfile
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import pytest

from shoal import errors
from shoal.storage.chunks import CHUNK
from shoal.storage.manifest import Entry, Manifest


class Content:
    """Chunks in memory."""

    def __init__(self) -> None:
        self.chunks: dict[str, bytes] = {}

    def open(self, digest: str) -> BinaryIO:
        return io.BytesIO(self.chunks[digest])

    def entry(self, path: str, data: bytes, mode: int = 0o644, mtime: float = 0) -> Entry:
        pieces = [data[at : at + CHUNK] for at in range(0, len(data), CHUNK)]
        names = tuple(sha256(piece).hexdigest() for piece in pieces)
        self.chunks.update(zip(names, pieces, strict=True))
        return Entry(path=path, size=len(data), mode=mode, chunks=names, mtime=mtime)


def link(path: str, target: str) -> Entry:
    return Entry(path=path, link=target)


def test_a_folder_comes_out_of_the_tar_as_it_went_in(tmp_path: Path) -> None:
    content = Content()
    large = bytes(range(256)) * (CHUNK // 256) + b"tail"
    long_name = "deep/" * 40 + "ünï-鱼.txt"
    entries = (
        link("latest", "data/large.bin"),
        content.entry("train.py", b"print(1)\n", mode=0o755, mtime=1_700_000_000.25),
        content.entry("empty", b""),
        content.entry("data/large.bin", large, mtime=12),
        content.entry(long_name, b"x" * 512),
    )
    stream = b"".join(Manifest(entries=entries).tar(content.open))
    assert len(stream) % 512 == 0
    with tarfile.open(fileobj=io.BytesIO(stream)) as tar:
        assert all((member.uid, member.gid) == (0, 0) for member in tar)
        tar.extractall(tmp_path, filter="data")
    assert (tmp_path / "train.py").read_bytes() == b"print(1)\n"
    assert (tmp_path / "train.py").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "train.py").stat().st_mtime == pytest.approx(1_700_000_000.25)
    assert (tmp_path / "empty").read_bytes() == b""
    assert (tmp_path / "latest").is_symlink()
    assert (tmp_path / "latest").read_bytes() == large
    assert (tmp_path / long_name).read_bytes() == b"x" * 512


def test_any_range_of_a_file_can_be_read() -> None:
    content = Content()
    data = bytes(range(251)) * 40_000
    entry = content.entry("f", data)
    for start, stop in [
        (0, None),
        (0, 1),
        (CHUNK - 1, CHUNK + 1),
        (CHUNK, 2 * CHUNK),
        (len(data) - 3, len(data) + 9),
        (5, 5),
    ]:
        assert b"".join(entry.read(content.open, start, stop)) == data[start:stop]


def test_a_chunk_of_the_wrong_size_is_noticed() -> None:
    content = Content()
    entry = content.entry("f", b"hello")
    content.chunks[entry.chunks[0]] = b"hell"
    with pytest.raises(errors.BadChunk, match="'f' has 4 bytes, not 5"):
        list(Manifest(entries=(entry,)).tar(content.open))


def test_equal_folders_have_equal_digests_whatever_the_order() -> None:
    content = Content()
    one, two = content.entry("a", b"1"), content.entry("b", b"22")
    assert Manifest(entries=(one, two)).digest() == Manifest(entries=(two, one)).digest()
    assert Manifest(entries=(one,)).digest() != Manifest(entries=(two,)).digest()
    raw = {"entries": [{"path": "a", "size": 1, "chunks": list(one.chunks), "mtime": 0}]}
    assert Manifest.parse(raw).digest() == Manifest(entries=(one,)).digest()
    both = Manifest(entries=(two, one))
    assert (both.size, both.chunks, both.find("b")) == (3, {*one.chunks, *two.chunks}, two)
    with pytest.raises(errors.NotFound, match="'c'"):
        both.find("c")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "empty"),
        ("a\0b", "NUL"),
        ("/etc/passwd", "absolute"),
        ("../x", r"'\.\.'"),
        ("a/../b", r"'\.\.'"),
        ("a//b", "empty"),
        ("a/", "empty"),
        ("./a", r"'\.'"),
        ("x/" * 2100 + "x", "longer"),
        ("y" * 256, "longer"),
        ("\udcff", "UTF-8"),
    ],
)
def test_a_path_that_cannot_be_is_refused_with_its_reason(path: str, reason: str) -> None:
    with pytest.raises(errors.BadSpec, match=reason) as caught:
        Entry(path=path)
    assert caught.value.problems[0]["value"][:50] == path[:50]


@pytest.mark.parametrize(
    ("entries", "named", "reason"),
    [
        ([Entry(path="a"), Entry(path="a")], "a", "twice"),
        ([Entry(path="a"), Entry(path="a/b")], "a/b", "is a file"),
        ([Entry(path="sub/x"), link("a", "sub"), Entry(path="a/b")], "a/b", "symbolic link"),
        ([link("a", "/etc/passwd")], "a", "absolute"),
        ([link("a", "..")], "a", "outside"),
        ([link("a", "")], "a", "empty"),
        ([link("a/b", "../../x")], "a/b", "outside"),
        ([link("a", "b/../../c")], "a", "outside"),
        # The kernel goes up from where the first link leads, not from where it stands.
        ([link("x/y/top", "../.."), link("out", "x/y/top/..")], "out", "outside"),
        ([link("x/y/top", "../.."), link("z", "x/y/top/x/../../.."), Entry(path="f")], "z", "outside"),
    ],
)
def test_a_folder_that_could_reach_outside_is_refused_by_name(entries: list[Entry], named: str, reason: str) -> None:
    with pytest.raises(errors.BadSpec, match=reason) as caught:
        Manifest(entries=tuple(entries))
    assert repr(named) in caught.value.message


@pytest.mark.parametrize(
    "entries",
    [
        [link("a", ".")],
        [link("a/b", "..")],
        [link("a/b", "../c/./d"), Entry(path="c/d")],
        [link("a", "b"), link("b", "a")],
        [link("deep/er/down", "../../x"), link("up", "deep/er/down/.."), Entry(path="x/f")],
    ],
)
def test_links_that_stay_inside_are_kept(entries: list[Entry]) -> None:
    assert len(Manifest(entries=tuple(entries)).entries) == len(entries)


@pytest.mark.parametrize(
    "raw",
    [
        {"entries": [{"path": "a", "size": 1}]},
        {"entries": [{"path": "a", "size": 1, "chunks": ["zz"]}]},
        {"entries": [{"path": "a", "link": "b", "size": 1}]},
        {"entries": [{"path": "a", "size": -1}]},
        {"entries": [{"path": "a", "mode": 0o4755}]},
        {"entries": [{"path": "a", "mtime": float("nan")}]},
        {"entries": [{"path": "a", "color": "red"}]},
        {"entries": [{"size": 0}]},
        {"entries": 7},
        None,
    ],
)
def test_whatever_is_wrong_on_the_wire_is_bad_spec(raw: object) -> None:
    with pytest.raises(errors.BadSpec) as caught:
        Manifest.parse(raw)
    assert caught.value.problems
