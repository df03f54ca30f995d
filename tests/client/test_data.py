from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from shoal.client import data
from shoal.client.http import Api
from shoal.errors import BadSpec, NotFound, ServerAway, ShoalError
from tests.client.fake import Answer, Asked, Break, Chunkery, FakeServer, problem


class Pool:
    """A pool that remembers what was committed and gives it back, with Range."""

    def __init__(self, server: FakeServer, chunkery: Chunkery) -> None:
        self.files: dict[str, dict[str, Any]] = {}
        self._chunkery = chunkery
        self.page = 2
        self.cut: int | None = None
        server.on("POST", "/pools/me/files", self._commit)
        server.on("GET", "/pools/me/files", self._list)
        server.on("DELETE", "/pools/me/files", self._remove)
        server.on("GET", "/pools/me/file", self._read)

    def _commit(self, asked: Asked) -> Answer:
        body = asked.json()
        for entry in body["entries"]:
            path = "/".join(part for part in (body["prefix"], entry["path"]) if part)
            self.files[path] = {**entry, "path": path}
        return Answer({"files": len(body["entries"])}, 201)

    def _below(self, prefix: str) -> list[str]:
        return sorted(path for path in self.files if not prefix or path == prefix or path.startswith(f"{prefix}/"))

    def _list(self, asked: Asked) -> Answer:
        start = int(asked.params.get("cursor", "0"))
        found = self._below(asked.params.get("prefix", ""))
        shown = [self.files[path] for path in found[start : start + self.page]]
        return Answer({"files": shown, "next": str(start + self.page) if start + self.page < len(found) else None})

    def _remove(self, asked: Asked) -> Answer:
        gone = self._below(asked.params["prefix"])
        for path in gone:
            del self.files[path]
        return Answer({"files": len(gone)})

    def _read(self, asked: Asked) -> Answer:
        entry = self.files.get(asked.params["path"])
        if entry is None:
            return problem(404, "not_found", "no such file")
        content = b"".join(self._chunkery.chunks[digest] for digest in entry["chunks"])
        start = int(asked.headers.get("range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        if start and start >= len(content):
            return problem(416, "range", "behind the end")
        body = content[start:]
        kind = {"Content-Type": "application/octet-stream"}
        if self.cut is not None and len(body) > self.cut:
            return Answer(None, 206 if start else 200, kind, self._cut(body), len(body))
        return Answer(body, 206 if start else 200, kind)

    def _cut(self, body: bytes) -> Any:
        assert self.cut is not None
        yield body[: self.cut]
        raise Break


@pytest.fixture
def pool(server: FakeServer, chunkery: Chunkery) -> Pool:
    return Pool(server, chunkery)


@pytest.fixture
def digits(project: Path) -> Path:
    for name in ("a.csv", "deep/b.csv", "deep/c.csv", ".git/kept"):
        file = project / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name * 10)
    (project / ".gitignore").write_text("*.csv\n")
    (project / "a.csv").chmod(0o600)
    return project


def tree(root: Path) -> dict[str, bytes]:
    return {str(file.relative_to(root)): file.read_bytes() for file in sorted(root.rglob("*")) if file.is_file()}


def test_a_folder_goes_there_and_back_whole(digits: Path, api: Api, pool: Pool, tmp_path: Path) -> None:
    assert data.put(api, digits, "pool://me/digits/") == "pool://me/digits"
    assert data.get(api, "pool://me/digits", tmp_path / "back") == tmp_path / "back"
    assert tree(tmp_path / "back") == tree(digits)
    assert (tmp_path / "back" / "a.csv").stat().st_mode & 0o777 == 0o600


def test_a_file_becomes_the_address_or_keeps_its_name_below_it(digits: Path, api: Api, pool: Pool) -> None:
    assert data.put(api, digits / "a.csv", "pool://me/x/y.csv") == "pool://me/x/y.csv"
    assert data.put(api, digits / "a.csv", "pool://me/x/") == "pool://me/x/a.csv"
    assert data.put(api, digits / "a.csv", "pool://me/") == "pool://me/a.csv"
    assert sorted(pool.files) == ["a.csv", "x/a.csv", "x/y.csv"]


def test_a_single_file_is_fetched_as_the_target_or_into_it(digits: Path, api: Api, pool: Pool, tmp_path: Path) -> None:
    data.put(api, digits / "a.csv", "pool://me/x/a.csv")
    assert data.get(api, "pool://me/x/a.csv", tmp_path / "mine.csv") == tmp_path / "mine.csv"
    (tmp_path / "into").mkdir()
    assert data.get(api, "pool://me/x/a.csv", tmp_path / "into") == tmp_path / "into" / "a.csv"
    assert (tmp_path / "into" / "a.csv").read_text() == (tmp_path / "mine.csv").read_text()


def test_listing_gives_every_file_below(digits: Path, api: Api, pool: Pool) -> None:
    data.put(api, digits, "pool://me/d")
    assert [file.path for file in data.ls(api, "pool://me/d/deep")] == ["d/deep/b.csv", "d/deep/c.csv"]
    assert len(list(data.ls(api, "pool://me/"))) == 5


def test_removing_counts_and_never_takes_the_whole_pool(digits: Path, api: Api, pool: Pool) -> None:
    data.put(api, digits, "pool://me/d")
    assert data.rm(api, "pool://me/d/deep") == 2
    with pytest.raises(BadSpec, match="names the whole pool"):
        data.rm(api, "pool://me/")
    with pytest.raises(BadSpec, match="pool://me/PATH"):
        data.rm(api, "job://x/y")


def test_a_broken_fetch_goes_on_where_it_stopped(
    api: Api, pool: Pool, server: FakeServer, project: Path, tmp_path: Path, impatient: None
) -> None:
    content = os.urandom(500_000)
    (project / "model.bin").write_bytes(content)
    data.put(api, project / "model.bin", "pool://me/model.bin")
    kept = server.replies[("GET", "/api/v1/pools/me/file")]
    pool.cut = 200_000

    def once(asked: Asked) -> Answer:
        if "range" in asked.headers:
            raise Break
        return kept(asked)

    server.on("GET", "/pools/me/file", once)
    with pytest.raises(ServerAway):
        data.get(api, "pool://me/model.bin", tmp_path / "model.bin")
    parts = list(tmp_path.glob("model.bin.*.part"))
    assert [part.stat().st_size for part in parts] == [200_000]
    assert not (tmp_path / "model.bin").exists()
    pool.cut = None
    server.on("GET", "/pools/me/file", kept)
    data.get(api, "pool://me/model.bin", tmp_path / "model.bin")
    assert (tmp_path / "model.bin").read_bytes() == content
    assert server.asked[-1].headers["range"] == "bytes=200000-"
    assert list(tmp_path.glob("*.part")) == []


def test_a_file_that_is_already_there_is_not_fetched_again(
    digits: Path, api: Api, pool: Pool, server: FakeServer, tmp_path: Path
) -> None:
    data.put(api, digits, "pool://me/d")
    data.get(api, "pool://me/d", tmp_path / "back")
    before = server.count("GET", "/pools/me/file?") + len([one for one in server.asked if one.path.endswith("/file")])
    told: list[tuple[int, int]] = []
    data.get(api, "pool://me/d", tmp_path / "back", lambda done, total: told.append((done, total)))
    assert len([one for one in server.asked if one.path.endswith("/file")]) == before
    assert told[-1][0] == told[-1][1] > 0


@pytest.mark.parametrize("path", ["d/../../evil", "/etc/evil", "d//x", "d/."])
def test_a_name_that_leads_out_of_the_target_writes_nothing(
    server: FakeServer, api: Api, pool: Pool, tmp_path: Path, path: str
) -> None:
    pool.files = {"d/ok": {"path": "d/ok", "size": 0, "chunks": []}, "d/zz": {"path": path, "size": 0, "chunks": []}}
    with pytest.raises(ShoalError, match="outside"):
        data.get(api, "pool://me/d" if path.startswith("d") else "pool://me/", tmp_path / "target")
    assert tree(tmp_path / "target") == {}


def test_a_link_in_the_target_does_not_lead_a_file_out(digits: Path, api: Api, pool: Pool, tmp_path: Path) -> None:
    data.put(api, digits, "pool://me/d")
    target, outside = tmp_path / "target", tmp_path / "outside"
    target.mkdir()
    outside.mkdir()
    (target / "deep").symlink_to(outside)
    with pytest.raises(ShoalError, match="outside"):
        data.get(api, "pool://me/d", target)
    assert tree(outside) == {}


def test_links_come_back_as_links_unless_they_lead_out(api: Api, pool: Pool, project: Path, tmp_path: Path) -> None:
    (project / "a").write_text("a")
    (project / "b").symlink_to("a")
    data.put(api, project, "pool://me/d")
    data.get(api, "pool://me/d", tmp_path / "back")
    assert (tmp_path / "back" / "b").readlink() == Path("a")
    pool.files["d/b"]["link"] = "../../evil"
    with pytest.raises(ShoalError, match="which is outside"):
        data.get(api, "pool://me/d", tmp_path / "again")


def test_nothing_at_the_address_is_said(api: Api, pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="holds nothing"):
        data.get(api, "pool://me/none", tmp_path / "x")
    with pytest.raises(BadSpec, match="there is no"):
        data.put(api, tmp_path / "none", "pool://me/x")


@pytest.mark.parametrize("address", ["me/x", "pool://", "s3://b/x", "dataset://digits@v1", "pool://me/../ann/x"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(BadSpec):
        data.parse_address(address)


def job_folder(server: FakeServer, files: dict[str, bytes]) -> None:
    """A job's folder as the server lists it: one folder at a time."""

    def listing(asked: Asked) -> Answer:
        folder = asked.params.get("path", "")
        inside = [path for path in files if path.startswith(f"{folder}/" if folder else "")]
        if folder and not inside:
            return problem(404, "not_found", f"nothing at {folder}")
        skip = len(folder) + 1 if folder else 0
        found: dict[str, dict[str, Any]] = {}
        for path in inside:
            name, _, more = path[skip:].partition("/")
            here = f"{folder}/{name}".lstrip("/")
            found[here] = {"path": here, "size": 0 if more else len(files[path]), "mtime": 5.0, "dir": bool(more)}
        return Answer({"files": list(found.values()), "next": None})

    server.on("GET", "/jobs/job1/files", listing)
    server.on("GET", "/jobs/job1/file", lambda asked: Answer(files[asked.params["path"]]))


def test_a_jobs_folder_is_fetched_with_all_below(server: FakeServer, api: Api, tmp_path: Path) -> None:
    job_folder(server, {"a.txt": b"a", "out/b.txt": b"bb", "out/deep/c.txt": b"ccc"})
    data.get(api, "job://job1/", tmp_path / "all")
    assert tree(tmp_path / "all") == {"a.txt": b"a", "out/b.txt": b"bb", "out/deep/c.txt": b"ccc"}
    data.get(api, "job://job1/out", tmp_path / "part")
    assert tree(tmp_path / "part") == {"b.txt": b"bb", "deep/c.txt": b"ccc"}


def test_a_single_file_of_a_job_is_fetched(server: FakeServer, api: Api, tmp_path: Path) -> None:
    job_folder(server, {"out/b.txt": b"bb"})
    assert data.get(api, "job://job1/out/b.txt", tmp_path / "mine.txt").read_bytes() == b"bb"
    with pytest.raises(NotFound):
        data.get(api, "job://job1/out/none.txt", tmp_path / "x")


def test_a_chain_of_links_from_a_bad_server_leads_no_file_out(
    api: Api, pool: Pool, digits: Path, tmp_path: Path
) -> None:
    """Each link stays inside by its words; followed one after the other they do not."""
    data.put(api, digits / "a.csv", "pool://me/d/c/evil")
    blank = {"size": 0, "chunks": [], "mode": 0o777, "mtime": 0.0}
    for path, target in (("d/a/keep/l", "../.."), ("d/c", "a/keep/l/..")):
        pool.files[path] = {**blank, "path": path, "link": target}
    target = tmp_path / "deep" / "target"
    with pytest.raises((ShoalError, OSError)):
        data.get(api, "pool://me/d", target)
    assert not (tmp_path / "deep" / "evil").exists()
    with pytest.raises((ShoalError, OSError)):
        data.get(api, "pool://me/d", target)
    assert not (tmp_path / "deep" / "evil").exists()
