"""The digest of a folder's content: the same wherever it lies and whenever it was written, cheap when known."""

from __future__ import annotations

import os
import tarfile
import time
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import pytest

from shoal.storage import tars
from shoal.storage.chunks import CHUNK
from shoal.storage.digests import Digests, FileDigest, tree_digest
from shoal.storage.manifest import Entry, Manifest
from shoal.storage.tars import tar_folder

CONTENT = {
    "a.txt": b"one",
    "sub/b.bin": bytes(range(256)) * (CHUNK // 256) + b"more",
    "sub/empty": b"",
    "z": b"x" * CHUNK,
}


def manifest(content: dict[str, bytes], mtime: float = 1.0) -> Manifest:
    entries = []
    for path, data in content.items():
        chunks = tuple(sha256(data[at : at + CHUNK]).hexdigest() for at in range(0, len(data), CHUNK))
        entries.append(Entry(path=path, size=len(data), chunks=chunks, mtime=mtime))
    return Manifest(entries=tuple(entries))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "left"
    for path, data in CONTENT.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
        os.utime(root / path, (1, 1))
    return root


def sent(root: Path, path: str = "", known: Digests | None = None) -> tuple[bytes, list[FileDigest]]:
    told: list[list[FileDigest]] = []
    stream = b"".join(tar_folder(root, path, known, told.append))
    assert len(told) == 1
    return stream, told[0]


def test_a_folder_of_a_job_has_the_digest_of_the_same_files_in_a_pool(folder: Path) -> None:
    assert tree_digest(sent(folder)[1]) == manifest(CONTENT).content_digest()


def test_times_do_not_count_and_content_and_names_do() -> None:
    plain = manifest(CONTENT).content_digest()
    assert manifest(CONTENT, mtime=99.0).content_digest() == plain
    assert manifest({**CONTENT, "a.txt": b"two"}).content_digest() != plain
    assert (
        manifest({"renamed" if path == "z" else path: data for path, data in CONTENT.items()}).content_digest() != plain
    )


def test_the_stream_is_the_same_with_and_without_digests(folder: Path) -> None:
    stream, _ = sent(folder)
    assert stream == b"".join(tar_folder(folder, ""))
    with tarfile.open(fileobj=BytesIO(stream)) as archive:
        assert {member.name for member in archive} == set(CONTENT)


def test_pieces_that_cross_the_end_of_a_chunk_give_the_same_digests(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tars, "_PIECE", 1_000_003)
    assert tree_digest(sent(folder)[1]) == manifest(CONTENT).content_digest()


def test_what_did_not_change_is_not_digested_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "digests"
    monkeypatch.setattr("shoal.storage.digests.SETTLED_SECONDS", -60.0)
    known = Digests(memory, keep=True)
    first = sent(folder, "", known)[1]
    known.save()
    monkeypatch.setattr(tars, "sha256", None)  # whoever digests now fails
    assert sent(folder, "", Digests(memory, keep=True))[1] == first
    assert (
        tree_digest(sent(folder, "sub", Digests(memory, keep=True))[1])
        == manifest(
            {path.removeprefix("sub/"): data for path, data in CONTENT.items() if path.startswith("sub/")}
        ).content_digest()
    )


def test_what_changed_is_digested_again(folder: Path, tmp_path: Path) -> None:
    known = Digests(tmp_path / "digests", keep=True)
    sent(folder, "", known)
    known.save()
    (folder / "a.txt").write_bytes(b"two")
    os.utime(folder / "a.txt", (time.time() - 100, 1))
    assert (
        tree_digest(sent(folder, "", Digests(tmp_path / "digests"))[1])
        == manifest({**CONTENT, "a.txt": b"two"}).content_digest()
    )


def test_a_name_that_is_not_utf8_has_a_digest(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.bin")).write_bytes(b"x")
    assert len(tree_digest(sent(tmp_path)[1])) == 64
