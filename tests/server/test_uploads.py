from __future__ import annotations

import os
from hashlib import sha256
from typing import Any

import httpx
import pytest

from shoal.storage.chunks import CHUNK
from tests.server.conftest import Site

pytestmark = pytest.mark.real


def upload(client: httpx.Client, path: str, content: bytes) -> dict[str, Any]:
    """Sends the chunks of one file and returns its entry."""
    pieces = [content[at : at + CHUNK] for at in range(0, len(content), CHUNK)]
    digests = [sha256(piece).hexdigest() for piece in pieces]
    for digest, piece in zip(digests, pieces, strict=True):
        assert client.put(f"/chunks/{digest}", content=piece).status_code == 204
    return {"path": path, "size": len(content), "chunks": digests}


def test_an_upload_goes_by_what_is_missing_and_twice_is_nothing(site: Site) -> None:
    digest = sha256(b"abc").hexdigest()
    assert site.root.post("/chunks/missing", json={"digests": [digest, digest]}).json() == {"missing": [digest]}
    assert site.root.put(f"/chunks/{digest}", content=b"abc").status_code == 204
    assert site.root.put(f"/chunks/{digest}", content=b"abc").status_code == 204
    assert site.root.post("/chunks/missing", json={"digests": [digest]}).json() == {"missing": []}


def test_a_chunk_that_is_not_what_it_says_is_refused(site: Site) -> None:
    digest = sha256(b"the whole").hexdigest()
    answer = site.root.put(f"/chunks/{digest}", content=b"the wh")
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_chunk")
    assert site.root.post("/chunks/missing", json={"digests": [digest]}).json() == {"missing": [digest]}


def test_a_chunk_over_the_limit_is_refused(site: Site) -> None:
    content = b"x" * (CHUNK + 1)
    assert site.root.put(f"/chunks/{sha256(content).hexdigest()}", content=content).status_code == 413


@pytest.mark.parametrize("name", ["xyz", "A" * 64, "..%2f..%2ftoken"])
def test_a_name_that_is_no_digest_is_refused(site: Site, name: str) -> None:
    assert site.root.put(f"/chunks/{name}", content=b"x").status_code in (400, 404)


def test_a_manifest_names_what_never_came(site: Site) -> None:
    absent = sha256(b"absent").hexdigest()
    answer = site.root.post("/manifests", json={"entries": [{"path": "a", "size": 6, "chunks": [absent]}]})
    assert (answer.status_code, answer.json()["code"], answer.json()["digests"]) == (409, "missing_chunks", [absent])


@pytest.mark.parametrize("path", ["../a", "/etc/passwd", "a/../../b", "", "a\0b", "a//b"])
def test_a_path_out_of_the_folder_is_refused(site: Site, path: str) -> None:
    for where in ("/manifests", "/pools/me/files"):
        answer = site.root.post(where, json={"entries": [{"path": path}]})
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_spec"), answer.text


def test_an_uploaded_folder_is_what_the_job_starts_in(site: Site) -> None:
    entry = upload(site.root, "hello.sh", b"echo from the folder\n")
    manifest = site.root.post("/manifests", json={"entries": [entry]}).json()["id"]
    body = {"spec": {"command": ["sh", "hello.sh"]}, "manifest": manifest}
    job = site.root.post("/jobs", json=body).json()["id"]
    assert site.ended(site.root, job)["state"] == "succeeded"
    assert "from the folder" in site.root.get(f"/jobs/{job}/logs").text


def test_another_users_manifest_cannot_be_run(site: Site) -> None:
    entry = upload(site.user("mia"), "x", b"x")
    manifest = site.user("mia").post("/manifests", json={"entries": [entry]}).json()["id"]
    answer = site.user("ned").post("/jobs", json={"spec": {"command": ["true"]}, "manifest": manifest})
    assert answer.status_code == 404


def test_a_pool_keeps_files_lists_them_by_folder_and_gives_them_back(site: Site) -> None:
    client = site.user("olga")
    content = os.urandom(CHUNK + 1000)
    entries = [upload(client, "big.bin", content), upload(client, "deep/small.txt", b"small")]
    assert client.post("/pools/me/files", json={"prefix": "data", "entries": entries}).json() == {"files": 2}
    listed = client.get("/pools/olga/files?prefix=data").json()["files"]
    assert [(file["path"], file["size"]) for file in listed] == [
        ("data/big.bin", len(content)),
        ("data/deep/small.txt", 5),
    ]
    assert [f["path"] for f in client.get("/pools/me/files?prefix=data/deep").json()["files"]] == [
        "data/deep/small.txt"
    ]
    assert client.get("/pools/me/files?prefix=dat").json()["files"] == []
    assert client.get("/pools/me/file?path=data/big.bin").content == content
    part = client.get("/pools/me/file?path=data/big.bin", headers={"range": f"bytes={CHUNK - 5}-{CHUNK + 4}"})
    assert (part.status_code, part.content) == (206, content[CHUNK - 5 : CHUNK + 5])
    assert client.get("/pools/me/file?path=data").status_code == 404
    assert client.delete("/pools/me/files?prefix=data/deep").json() == {"files": 1}
    assert client.get("/pools/me/file?path=data/deep/small.txt").status_code == 404


def test_pools_are_paged(site: Site) -> None:
    client = site.user("pam")
    entry = upload(client, "x", b"x")
    client.post("/pools/me/files", json={"entries": [{**entry, "path": f"f{i}"} for i in range(5)]})
    found, cursor = [], None
    while True:
        page = client.get("/pools/me/files", params={"limit": "2"} | ({"cursor": cursor} if cursor else {})).json()
        found += [file["path"] for file in page["files"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert found == [f"f{i}" for i in range(5)]


def test_a_pool_file_whose_chunks_never_came_is_refused(site: Site) -> None:
    absent = sha256(b"never").hexdigest()
    answer = site.root.post("/pools/me/files", json={"entries": [{"path": "a", "size": 5, "chunks": [absent]}]})
    assert answer.status_code == 409


def test_an_administrator_reaches_the_pools_that_exist(site: Site) -> None:
    site.user("quentin")
    assert site.root.get("/pools/quentin/files").status_code == 200
    assert site.root.get("/pools/nobody-at-all/files").status_code == 404


def test_an_input_from_the_pool_reaches_the_job(site: Site) -> None:
    client = site.user("rita")
    entry = upload(client, "numbers.txt", b"1 2 3\n")
    client.post("/pools/me/files", json={"prefix": "set", "entries": [entry]})
    command = ["sh", "-c", "cat $SHOAL_INPUTS/set/numbers.txt"]
    answer = client.post("/jobs", json={"spec": {"command": command, "inputs": {"set": "pool://me/set"}}})
    job = answer.json()["id"]
    assert site.ended(client, job)["state"] == "succeeded"
    assert "1 2 3" in client.get(f"/jobs/{job}/logs").text


def test_a_large_folder_travels_as_one_tar(site: Site) -> None:
    """Through the same stream a shepherd reads: many small files and one of several chunks."""
    entries = [upload(site.root, f"many/{i}.txt", b"%d" % (i % 7)) for i in range(300)]
    entries.append(upload(site.root, "big", b"y" * (2 * CHUNK + 5)))
    manifest = site.root.post("/manifests", json={"entries": entries}).json()["id"]
    command = ["sh", "-c", "ls many | wc -l; wc -c < big"]
    job = site.root.post("/jobs", json={"spec": {"command": command}, "manifest": manifest}).json()["id"]
    assert site.ended(site.root, job)["state"] == "succeeded"
    text = site.root.get(f"/jobs/{job}/logs").text
    assert "300" in text and str(2 * CHUNK + 5) in text
