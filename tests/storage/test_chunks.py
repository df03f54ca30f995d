from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from threading import Thread

import pytest

from shoal import errors
from shoal.storage.blobs import FolderBlobs
from shoal.storage.chunks import CHUNK, Chunks


@pytest.fixture
def chunks(tmp_path: Path) -> Chunks:
    return Chunks(FolderBlobs(tmp_path))


def digest_of(data: bytes) -> str:
    return sha256(data).hexdigest()


def test_a_chunk_is_kept_once_per_owner_and_unknown_to_others(chunks: Chunks, tmp_path: Path) -> None:
    name = digest_of(b"hello")
    chunks.put("anna", name, iter([b"he", b"llo"]))
    chunks.put("anna", name, b"hello")
    assert chunks.missing("anna", [name, name, "0" * 64]) == {"0" * 64}
    assert chunks.missing("ben", [name]) == {name}
    with chunks.open("anna", name) as file:
        assert file.read() == b"hello"
    with pytest.raises(errors.NotFound):
        chunks.open("ben", name)
    assert (tmp_path / "chunks" / "anna" / name[:2] / name).is_file()


def test_content_that_does_not_match_its_name_is_refused_and_not_stored(chunks: Chunks) -> None:
    name = digest_of(b"hello")
    with pytest.raises(errors.BadChunk, match="4 bytes came"):
        chunks.put("anna", name, b"hell")
    assert chunks.missing("anna", [name]) == {name}


def test_four_mib_fit_and_one_byte_more_does_not(chunks: Chunks) -> None:
    most = bytes(CHUNK)
    chunks.put("anna", digest_of(most), most)
    over = most + b"1"
    for data in (over, iter([most, b"1", b"never read"])):
        with pytest.raises(errors.BadChunk, match=r"over 4\.0 MiB"):
            chunks.put("anna", digest_of(over), data)


@pytest.mark.parametrize("digest", ["", "../" + "0" * 61, "A" * 64, "0" * 63, "0" * 64 + "\n", "g" * 64])
def test_only_a_digest_names_a_chunk(chunks: Chunks, digest: str) -> None:
    with pytest.raises(errors.BadChunk, match="does not name a chunk"):
        chunks.missing("anna", [digest])
    with pytest.raises(errors.BadChunk):
        chunks.put("anna", digest, b"")


@pytest.mark.parametrize("owner", ["", ".", "..", "a/b", "anna\n", "a" * 200])
def test_an_owner_that_is_not_a_plain_name_is_refused(chunks: Chunks, owner: str) -> None:
    with pytest.raises(errors.BadSpec, match="cannot own"):
        chunks.put(owner, digest_of(b""), b"")


def test_many_put_the_same_chunk_at_once(chunks: Chunks, tmp_path: Path) -> None:
    data = b"same" * 100_000
    threads = [Thread(target=chunks.put, args=("anna", digest_of(data), data)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with chunks.open("anna", digest_of(data)) as file:
        assert file.read() == data
    assert list((tmp_path / "tmp").iterdir()) == []
