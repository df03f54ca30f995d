"""Who may do what: no route without a token, nobody into another's things, and no hint that they exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from shoal.home import Home
from shoal.server.app import build_routes
from shoal.server.gangs import GangEntrance
from shoal.server.serve import build_service
from shoal.server.service import Service
from shoal.server.settings import Settings
from tests.server.conftest import Site

pytestmark = pytest.mark.real

OPEN = {("GET", "/healthz")}
FILLED = {"ref": "abcdefgh", "digest": "0" * 64, "pool": "me", "number": "abcdefghij", "name": "x", "key": "abc-1"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = Home(tmp_path_factory.mktemp("routes"))
    home.create()
    made = build_service(home, Settings(), "http://127.0.0.1:1", None)
    yield made
    made.store.close()


def all_routes(service: Service) -> list[tuple[str, str]]:
    """Every (method, path) the server has, with something in the place of each parameter."""
    described = build_routes(service).openapi()["paths"]
    found = [(method.upper(), path) for path, methods in described.items() for method in methods]
    found += [("GET", "/openapi.json"), ("GET", "/api/v1/healthz"), ("GET", "/api/v1/metrics")]
    found += GangEntrance(service).paths
    return [(method, re.sub(r"\{(\w+)\}", lambda m: FILLED[m.group(1)], path)) for method, path in found]


@pytest.mark.parametrize("token", [None, "garbage", f"shl_{'a' * 10}_{'b' * 43}"])
def test_no_route_answers_without_a_good_token(site: Site, service: Service, token: str | None) -> None:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    routes = all_routes(service)
    assert len(routes) > 45
    with httpx.Client(base_url=site.note.url, headers=headers, trust_env=False) as client:
        for method, path in routes:
            if path.endswith("/healthz"):
                continue
            answer = client.request(method, path, json={} if method in ("POST", "PUT") else None)
            assert answer.status_code == 401, (method, path, answer.text)
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["code"] == "not_signed_in"


def test_paths_that_do_not_exist_are_closed_as_well(site: Site) -> None:
    with httpx.Client(base_url=site.note.url, trust_env=False) as client:
        for path in ("/", "/docs", "/redoc", "/api/v1/nothing", "/api/v1/gangs/", "/api/v1/gangs/x", "/healthz/"):
            assert client.get(path, follow_redirects=False).status_code == 401, path
        assert client.get("/healthz").json() == {"ok": True}


JOB_ROUTES: list[tuple[str, str, Any]] = [
    ("GET", "/jobs/{id}", None),
    ("GET", "/jobs/{id}/why", None),
    ("GET", "/jobs/{id}/events", None),
    ("GET", "/jobs/{id}/samples", None),
    ("GET", "/jobs/{id}/logs", None),
    ("GET", "/jobs/{id}/logs?follow=1", None),
    ("GET", "/jobs/{id}/watch", None),
    ("GET", "/jobs/{id}/files", None),
    ("GET", "/jobs/{id}/file?path=x", None),
    ("GET", "/jobs/{id}/diff", None),
    ("GET", "/jobs/{id}/code", None),
    ("GET", "/jobs/{id}/code/file?path=x", None),
    ("POST", "/jobs/{id}/stop", {}),
    ("POST", "/jobs/{id}/stacks", {}),
    ("DELETE", "/jobs/{id}", None),
]


def test_the_table_below_has_every_route_of_a_job(service: Service) -> None:
    described = build_routes(service).openapi()["paths"]
    wanted = {(m.upper(), p) for p, ms in described.items() for m in ms if p.startswith("/api/v1/jobs/{ref}")}
    tested = {(m, "/api/v1" + p.partition("?")[0].replace("{id}", "{ref}")) for m, p, _ in JOB_ROUTES}
    assert tested == wanted


@pytest.fixture(scope="module")
def job_of_ann(site: Site) -> str:
    ann = site.user("ann")
    digest = sha256(b"sent").hexdigest()
    assert ann.put(f"/chunks/{digest}", content=b"sent").status_code in (200, 201, 204)
    entry = {"path": "kept.txt", "size": 4, "chunks": [digest]}
    manifest = ann.post("/manifests", json={"entries": [entry]}).json()["id"]
    spec = {"command": ["sh", "-c", "echo hello; echo kept > kept.txt"], "name": "hers"}
    origin = {"host": "laptop", "git": {"commit": "c" * 40, "diff": "-a\n+b\n"}}
    answer = ann.post("/jobs", json={"spec": spec, "manifest": manifest, "origin": origin})
    assert answer.status_code == 201, answer.text
    site.ended(ann, answer.json()["id"])
    return str(answer.json()["id"])


def test_the_code_of_a_job_is_what_was_sent_whatever_it_made_of_it(site: Site, job_of_ann: str) -> None:
    ann = site.user("ann")
    assert ann.get(f"/jobs/{job_of_ann}/file?path=kept.txt").text == "kept\n"
    assert ann.get(f"/jobs/{job_of_ann}/code/file?path=kept.txt").text == "sent"
    (file,) = ann.get(f"/jobs/{job_of_ann}/code").json()["files"]
    assert (file["path"], file["size"], len(file["digest"])) == ("kept.txt", 4, 64)
    assert ann.get(f"/jobs/{job_of_ann}/code/file?path=nothing").status_code == 404
    assert ann.get(f"/jobs/{job_of_ann}/diff").text == "-a\n+b\n"


def test_a_job_of_a_bare_command_has_neither_code_nor_diff(site: Site) -> None:
    job = site.submit(site.root, "true")
    for part in ("code", "code/file?path=x", "diff"):
        assert site.root.get(f"/jobs/{job['id']}/{part}").json()["code"] == "not_found"


@pytest.mark.parametrize(("method", "path", "body"), JOB_ROUTES)
@pytest.mark.parametrize("ref", ["id", "prefix", "name"])
def test_another_users_job_does_not_exist(
    site: Site, job_of_ann: str, method: str, path: str, body: Any, ref: str
) -> None:
    named = {"id": job_of_ann, "prefix": job_of_ann[:6], "name": "hers"}[ref]
    bob = site.user("bob")
    answer = bob.request(method, path.replace("{id}", named), json=body)
    missing = bob.request(method, path.replace("{id}", "nosuchjob0"), json=body)
    assert answer.status_code == missing.status_code == 404, answer.text
    assert answer.json()["code"] == "not_found"


@pytest.mark.parametrize(("method", "path", "body"), [route for route in JOB_ROUTES if route[0] == "GET"])
def test_its_owner_and_an_administrator_see_it(site: Site, job_of_ann: str, method: str, path: str, body: Any) -> None:
    for who in (site.user("ann"), site.root):
        answer = who.request(method, path.replace("{id}", job_of_ann).replace("path=x", "path=kept.txt"), json=body)
        assert answer.status_code == 200, answer.text


def test_lists_show_only_ones_own_jobs(site: Site, job_of_ann: str) -> None:
    assert site.user("bob").get("/jobs").json() == {"jobs": [], "next": None}
    assert site.user("bob").get("/jobs?owner=ann").json()["jobs"] == []
    assert [job["id"] for job in site.user("ann").get("/jobs").json()["jobs"]] == [job_of_ann]
    assert job_of_ann in [job["id"] for job in site.root.get("/jobs?owner=ann").json()["jobs"]]


def test_a_user_cannot_submit_for_another_but_an_administrator_can(site: Site) -> None:
    spec = {"command": ["true"], "owner": "ann"}
    assert site.user("bob").post("/jobs", json={"spec": spec}).status_code == 403
    assert site.root.post("/jobs", json={"spec": spec}).json()["owner"] == "ann"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/users", None),
        ("POST", "/users", {"name": "eve"}),
        ("DELETE", "/users/ann", None),
        ("GET", "/metrics", None),
        ("GET", "/tokens?of=ann", None),
        ("GET", "/tokens?of=*", None),
        ("POST", "/tokens", {"user": "ann"}),
    ],
)
def test_what_only_an_administrator_may_do_is_refused_to_a_user(site: Site, method: str, path: str, body: Any) -> None:
    answer = site.user("bob").request(method, path, json=body)
    assert answer.status_code == 403
    assert answer.json()["code"] == "not_allowed"


def test_another_users_pool_token_and_webhook_are_out_of_reach(site: Site) -> None:
    ann, bob = site.user("ann"), site.user("bob")
    assert bob.get("/pools/ann/files").status_code == 404
    assert bob.get("/pools/ann/file?path=x").status_code == 404
    assert bob.delete("/pools/ann/files?prefix=/").status_code == 404
    token = ann.get("/tokens").json()["tokens"][0]["id"]
    assert bob.delete(f"/tokens/{token}").status_code == 404
    ann.put("/webhook", json={"url": "http://127.0.0.1:9/"})
    assert bob.get("/webhook").status_code == 404


def test_a_pool_or_upload_never_tells_what_another_user_has(site: Site) -> None:
    from hashlib import sha256

    digest = sha256(b"hers").hexdigest()
    ann, bob = site.user("ann"), site.user("bob")
    assert ann.put(f"/chunks/{digest}", content=b"hers").status_code == 204
    assert ann.post("/chunks/missing", json={"digests": [digest]}).json() == {"missing": []}
    assert bob.post("/chunks/missing", json={"digests": [digest]}).json() == {"missing": [digest]}


def test_tokens_and_queries_are_never_in_the_log(site: Site, job_of_ann: str) -> None:
    site.user("ann").get(f"/jobs/{job_of_ann}/logs", params={"grep": "needle-in-query"})
    text = site.home.server_log.read_text()
    assert "needle-in-query" not in text
    for token in (site.home.read_token(), *site.tokens.values()):
        assert token is not None and token.split("_", 2)[2] not in text


def test_home_and_token_are_the_owners_only(site: Site) -> None:
    assert site.home.root.stat().st_mode & 0o777 == 0o700
    for path in (site.home.token_file, site.home.note_file, site.home.server_log, site.home.database):
        assert path.stat().st_mode & 0o077 == 0, path
    assert "shl_" not in Path(site.home.note_file).read_text()
