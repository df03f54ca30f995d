from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from shoal.client import digests, upload
from shoal.client.http import Api
from shoal.client.upload import pack
from shoal.errors import BadSpec, ServerAway
from tests.client.fake import Answer, Asked, Break, Chunkery, FakeServer


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "CHUNK", 1000)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only files that rest are remembered, and a change time cannot be set back: here everything counts as old."""
    monkeypatch.setattr("shoal.storage.digests.SETTLED_SECONDS", -1000.0)


def test_a_folder_arrives_as_it_is(project: Path, api: Api, chunkery: Chunkery) -> None:
    (project / "train.py").write_text("print(1)")
    (project / "big.bin").write_bytes(bytes(range(256)) * 20)
    (project / "empty").touch()
    (project / "run.sh").write_text("#!/bin/sh")
    (project / "run.sh").chmod(0o755)
    (project / "link").symlink_to("train.py")
    assert len(upload.upload(api, project)) == 64
    assert chunkery.paths() == ["big.bin", "empty", "link", "run.sh", "train.py"]
    assert chunkery.content("big.bin") == bytes(range(256)) * 20
    about = {entry["path"]: entry for entry in chunkery.manifests[-1]}
    assert about["run.sh"]["mode"] == 0o755
    assert about["link"]["link"] == "train.py"
    assert about["empty"]["chunks"] == []
    assert about["big.bin"]["size"] == 5120
    assert len(about["big.bin"]["chunks"]) == 6


def test_an_unchanged_folder_sends_nothing(project: Path, api: Api, server: FakeServer, chunkery: Chunkery) -> None:
    (project / "a").write_bytes(os.urandom(5000))
    first = upload.upload(api, project)
    sent = server.count("PUT", "/chunks/")
    assert sent == 5
    assert upload.upload(api, project) == first
    assert server.count("PUT", "/chunks/") == sent


def test_equal_content_is_sent_once(project: Path, api: Api, server: FakeServer, chunkery: Chunkery) -> None:
    for name in "abc":
        (project / name).write_text("the same")
    upload.upload(api, project)
    assert server.count("PUT", "/chunks/") == 1


def test_an_unchanged_file_is_not_read_again(project: Path, settled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "a").write_bytes(os.urandom(5000))
    (project / "b").write_text("b")
    before = pack(project)
    read: list[str] = []
    original = upload._read

    def noting(file: Path) -> Any:
        read.append(file.name)
        return original(file)

    monkeypatch.setattr(upload, "_read", noting)
    assert pack(project) == before
    assert read == []
    (project / "b").write_text("c")
    assert pack(project) != before
    assert read == ["b"]


def test_a_file_changed_just_now_is_read_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = project / "a"
    file.write_text("one")
    status = file.stat()
    pack(project)
    file.write_text("two")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert pack(project).entries[0]["chunks"] == [sha256(b"two").hexdigest()]


def test_a_damaged_memory_is_forgotten(project: Path, settled: None) -> None:
    (project / "a").write_text("a")
    before = pack(project)
    files = list((digests.cache_folder() / "digests").iterdir())
    assert len(files) == 1
    files[0].write_text("{broken")
    assert pack(project) == before


def test_a_broken_upload_is_resumed_by_uploading_again(
    project: Path, api: Api, server: FakeServer, chunkery: Chunkery, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "a").write_bytes(os.urandom(20_000))
    kept = chunkery.put

    def dying(asked: Asked) -> Answer:
        if len(chunkery.chunks) >= 7:
            raise Break
        return kept(asked)

    server.on("PUT", "/chunks/*", dying)
    monkeypatch.setattr("shoal.client.http.RETRIES", 0)
    with pytest.raises(ServerAway):
        upload.upload(api, project)
    arrived = len(chunkery.chunks)
    assert 7 <= arrived < 20
    assert chunkery.manifests == []
    server.on("PUT", "/chunks/*", kept)
    before = server.count("PUT", "/chunks/")
    upload.upload(api, project)
    assert server.count("PUT", "/chunks/") - before == 20 - arrived
    assert chunkery.content("a") == (project / "a").read_bytes()


def test_a_chunk_cut_short_on_the_way_is_sent_again(
    project: Path, api: Api, server: FakeServer, chunkery: Chunkery
) -> None:
    (project / "a").write_text("hello")
    kept, calls = chunkery.put, []

    def truncating(asked: Asked) -> Answer:
        calls.append(1)
        asked.body = asked.body[:2] if len(calls) == 1 else asked.body
        return kept(asked)

    server.on("PUT", "/chunks/*", truncating)
    upload.upload(api, project)
    assert chunkery.content("a") == b"hello"


def test_what_is_missing_is_asked_in_batches(
    project: Path, api: Api, chunkery: Chunkery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "BATCH", 10)
    (project / "a").write_bytes(os.urandom(25_000))
    upload.upload(api, project)
    assert chunkery.batches == [10, 10, 5]


def test_progress_says_how_much_of_what_is_missing_was_sent(project: Path, api: Api, chunkery: Chunkery) -> None:
    (project / "a").write_bytes(os.urandom(2500))
    told: list[tuple[int, int]] = []
    upload.upload(api, project, lambda sent, total: told.append((sent, total)))
    assert told == [(0, 2500), (1000, 2500), (2000, 2500), (2500, 2500)]
    told.clear()
    upload.upload(api, project, lambda sent, total: told.append((sent, total)))
    assert told == [(0, 0)]


def test_a_file_that_changes_between_reading_and_sending_is_read_again(
    project: Path, api: Api, server: FakeServer, chunkery: Chunkery
) -> None:
    file = project / "a"
    file.write_text("old")
    kept = server.replies[("POST", "/api/v1/chunks/missing")]
    calls: list[int] = []

    def changing(asked: Asked) -> Answer:
        calls.append(1)
        if len(calls) == 1:
            file.write_text("new content")
        return kept(asked)

    server.on("POST", "/chunks/missing", changing)
    upload.upload(api, project)
    assert len(calls) == 2
    assert chunkery.content("a") == b"new content"


def test_a_file_that_grows_while_it_is_read_is_read_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = project / "a"
    file.write_bytes(b"x" * 10)
    original, calls = upload._digests, []

    def growing(stream: Any) -> Any:
        found = original(stream)
        calls.append(1)
        if len(calls) == 1:
            file.write_bytes(b"y" * 20)
        return found

    monkeypatch.setattr(upload, "_digests", growing)
    entry = pack(project).entries[0]
    assert entry["size"] == 20
    assert entry["chunks"] == [sha256(b"y" * 20).hexdigest()]


def test_a_file_that_never_rests_is_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = project / "restless.log"
    file.write_bytes(b"x")
    original = upload._digests

    def growing(stream: Any) -> Any:
        found = original(stream)
        with file.open("ab") as out:
            out.write(b"more")
        return found

    monkeypatch.setattr(upload, "_digests", growing)
    with pytest.raises(BadSpec, match=r"restless\.log changes while it is read"):
        pack(project)


def test_a_file_that_vanishes_during_the_walk_is_left_out(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "a").write_text("a")
    (project / "b").write_text("b")
    original = upload._read

    def removing(file: Path) -> Any:
        if file.name == "a":
            file.unlink()
        return original(file)

    monkeypatch.setattr(upload, "_read", removing)
    assert [entry["path"] for entry in pack(project).entries] == ["b"]


def test_a_file_that_cannot_be_read_is_named() -> None:
    with pytest.raises(BadSpec, match="/proc/self/mem cannot be read"):
        upload.pack_file(Path("/proc/self/mem"), "mem")


def test_chunks_the_server_dropped_meanwhile_are_sent_again(
    project: Path, api: Api, server: FakeServer, chunkery: Chunkery
) -> None:
    (project / "a").write_text("hello")
    kept = server.replies[("POST", "/api/v1/manifests")]
    calls: list[int] = []

    def forgetting(asked: Asked) -> Answer:
        calls.append(1)
        if len(calls) == 1:
            chunkery.chunks.clear()
        return kept(asked)

    server.on("POST", "/manifests", forgetting)
    upload.upload(api, project)
    assert chunkery.content("a") == b"hello"
