from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from shoal.server.door import LIMIT, limit_of
from tests.server.conftest import Site, eventually

pytestmark = pytest.mark.real


def test_every_answer_carries_the_security_headers_and_none_allows_another_origin(site: Site) -> None:
    for path in ("/healthz", "/api/v1/whoami", "/api/v1/nothing"):
        answer = httpx.get(site.note.url + path, headers={"origin": "http://evil.example"}, trust_env=False)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cache-control"] == "no-store"
        assert "server" not in answer.headers
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_foreign_host_name_is_not_answered_to(site: Site, host: str) -> None:
    answer = site.root.get("/whoami", headers={"host": host})
    assert answer.status_code == 400


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1", "[::1]:99"])
def test_the_names_of_loopback_are(site: Site, host: str) -> None:
    assert site.root.get("/whoami", headers={"host": host}).status_code == 200


def test_bodies_have_limits_by_what_they_are() -> None:
    assert limit_of("/api/v1/jobs") == LIMIT == 2 << 20
    assert limit_of(f"/api/v1/chunks/{'0' * 64}") == 4 << 20
    assert limit_of("/api/v1/manifests") == limit_of("/api/v1/pools/me/files") == 64 << 20


def test_a_body_that_declares_too_much_is_refused_unread(site: Site) -> None:
    answer = site.root.post("/jobs", content=b"x" * (LIMIT + 1), headers={"content-type": "application/json"})
    assert answer.status_code == 413
    assert answer.json()["code"] == "too_large"


def test_a_body_without_a_length_is_cut_off_at_the_limit(site: Site) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(4 * LIMIT // 65536):
            yield b" " * 65536

    try:
        answer = site.root.post("/jobs", content=endless(), headers={"content-type": "application/json"})
    except httpx.HTTPError:
        return  # the server hung up while we were still sending: refused just the same
    assert answer.status_code == 413


@pytest.mark.parametrize(
    "body", [b"{", b"[1]", b'"x"', b"\xff\xfe", b"[" * 100_000, b"null", b'{"spec": 3}', b'{"x": 1}']
)
def test_a_body_that_cannot_be_read_is_a_bad_request(site: Site, body: bytes) -> None:
    answer = site.root.post("/jobs", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "bad_request"


def test_an_unknown_address_and_a_wrong_method_are_problems_too(site: Site) -> None:
    assert site.root.get("/nothing").json()["code"] == "not_found"
    assert site.root.patch("/jobs").json()["code"] == "method_not_allowed"


def test_requests_are_logged_as_json_lines_without_their_query(site: Site) -> None:
    site.root.get("/jobs?name=hidden")

    def logged() -> list[dict[str, object]]:
        lines = [json.loads(line) for line in site.home.server_log.read_text().splitlines() if line.endswith("}")]
        return [line for line in lines if line.get("path") == "/api/v1/jobs" and line["method"] == "GET"]

    found = eventually(logged)  # the line is written behind the answer
    assert found[-1].keys() >= {"time", "method", "path", "status", "ms", "user"}
    assert (found[-1]["status"], found[-1]["user"]) == (200, site.root.get("/whoami").json()["name"])


def test_openapi_describes_the_routes(site: Site) -> None:
    described = httpx.get(
        f"{site.note.url}/openapi.json", headers={"authorization": site.root.headers["authorization"]}, trust_env=False
    ).json()
    assert described["openapi"].startswith("3.")
    assert "/api/v1/jobs/{ref}/logs" in described["paths"]
    assert "Submission" in described["components"]["schemas"]


def test_metrics_are_in_prometheus_text(site: Site) -> None:
    site.root.get("/jobs")
    answer = site.root.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    assert float(values['shoal_requests_total{method="GET",route="/jobs",status="200"}']) >= 1
    assert 'shoal_jobs{state="running"}' in values
    assert 10e6 < float(values["process_resident_memory_bytes"]) < 150e6


def test_endless_headers_are_hung_up_on(site: Site) -> None:
    host, _, port = site.note.url.removeprefix("http://").partition(":")
    for start in (b"GET /healthz HTTP/1.1\r\nX-Long: ", b"GET /healthz?", b"GET /healthz HTTP/1.1\r\n"):
        with socket.create_connection((host, int(port)), timeout=10) as stranger:
            stranger.sendall(start)
            piece = b"x: y\r\n" * 10_000 if start.endswith(b"\n") else b"x" * 60_000
            with pytest.raises(OSError):
                for _ in range(200):
                    stranger.sendall(piece)
    long = site.root.get("/jobs", params={"name": "x" * 60_000, "limit": 1})
    assert long.status_code == 200


def test_strangers_cannot_invent_names_for_the_metrics(site: Site) -> None:
    for number in range(5):
        assert site.client(None).get(f"/gangs/some-1/invented{number}").status_code == 401
    told = site.root.get("/metrics").text
    assert "invented" not in told
    assert 'route="/gangs/{key}/other"' in told


def test_a_secret_of_odd_bytes_is_a_wrong_one(site: Site) -> None:
    answer = site.client(None).get("/gangs/some-1/roster", headers={"authorization": b"Gang \xff\xfe"})  # type: ignore[dict-item]
    assert answer.status_code == 401
