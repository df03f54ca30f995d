"""Live streams of a real server: nothing lost, nothing twice, shared by many, resumed, ended."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from shoal.home import Home
from shoal.server import process
from tests.server.conftest import Site, events_of, eventually, lines_of, python

pytestmark = pytest.mark.real

# Prints lines until the file `go` appears beside it, then the rest.
COUNTER = """
import os, time
n = 0
while not os.path.exists("go"):
    print(n, flush=True); n += 1; time.sleep(0.02)
print("last", n, flush=True)
"""


def go(site: Site, job: str) -> None:
    (site.home.work / job / "go").touch()


def follow(client: httpx.Client, job: str, into: list[dict[str, str]], **params: Any) -> threading.Thread:
    """Follows in a thread of its own until the stream ends."""

    def run() -> None:
        with client.stream("GET", f"/jobs/{job}/logs", params={"follow": "1", **params}) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            for event in events_of(answer):
                into.append(event)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def whole(lines: list[str]) -> bool:
    """Every number once and in order, and the last line behind them."""
    count = int(lines[-1].removeprefix("last "))
    return lines == [*map(str, range(count)), f"last {count}"]


def test_many_followers_see_every_line_once_and_the_end(site: Site) -> None:
    job = site.submit(site.root, *python(COUNTER))["id"]
    seen: list[list[dict[str, str]]] = [[] for _ in range(12)]
    clients = [site.client(site.home.read_token()) for _ in seen]
    early = [follow(client, job, into) for client, into in zip(clients[:6], seen[:6], strict=True)]
    eventually(lambda: all(len(lines_of(into)) > 10 for into in seen[:6]))
    late = [follow(client, job, into) for client, into in zip(clients[6:], seen[6:], strict=True)]
    eventually(lambda: all(len(lines_of(into)) > 30 for into in seen))
    go(site, job)
    for thread in early + late:
        thread.join(30)
    for into in seen:
        assert whole(lines_of(into))
        assert into[-1]["event"] == "end"
        assert json.loads(into[-1]["data"])["state"] == "succeeded"


def test_a_broken_stream_is_resumed_behind_its_last_event(site: Site) -> None:
    job = site.submit(site.root, *python(COUNTER))["id"]
    got: list[dict[str, str]] = []
    with site.root.stream("GET", f"/jobs/{job}/logs?follow=1") as answer:
        for event in events_of(answer):
            got.append(event)
            if len(lines_of(got)) > 20:
                break
    go(site, job)
    rest: list[dict[str, str]] = []
    with site.root.stream("GET", f"/jobs/{job}/logs?follow=1", headers={"last-event-id": got[-1]["id"]}) as answer:
        rest = list(events_of(answer))
    assert whole(lines_of(got + rest))
    again = list(events_of(site.root.get(f"/jobs/{job}/logs", params={"cursor": got[-1]["id"]})))
    assert lines_of(again) == lines_of(rest)


@pytest.fixture(scope="module")
def two_ranks(site: Site) -> str:
    code = "import os\nfor i in range(5): print('rank', os.environ['SHOAL_RANK'], 'line', i, flush=True)"
    job = site.submit(site.root, *python(code), workers=2)["id"]
    site.ended(site.root, job)
    return str(job)


@pytest.mark.parametrize("wanted", ["0", "1"])
@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({}, lambda rank, i: True),
        ({"rank": "worker-1"}, lambda rank, i: rank == 1),
        ({"rank": "1"}, lambda rank, i: rank == 1),
        ({"grep": "line [34]$"}, lambda rank, i: i >= 3),
        ({"rank": "worker-0", "tail": "2"}, lambda rank, i: rank == 0 and i >= 3),
        ({"since": "4000000000"}, lambda rank, i: False),
        ({"attempt": "2"}, lambda rank, i: False),
    ],
)
def test_filters_hold_with_and_without_follow(
    site: Site, two_ranks: str, wanted: str, params: dict[str, str], kept: Any
) -> None:
    answer = site.root.get(f"/jobs/{two_ranks}/logs", params={**params, "follow": wanted})
    events = list(events_of(answer))
    expected = {f"rank {rank} line {i}" for rank in (0, 1) for i in range(5) if kept(rank, i)}
    found = lines_of(events)
    assert (len(found), set(found)) == (len(expected), expected)
    assert events[-1]["event"] == "end"


def test_a_filtered_follower_sees_what_comes(site: Site) -> None:
    job = site.submit(site.root, *python(COUNTER))["id"]
    into: list[dict[str, str]] = []
    thread = follow(site.client(site.home.read_token()), job, into, grep="5$|last")
    eventually(lambda: len(lines_of(into)) > 2)
    go(site, job)
    thread.join(30)
    found = lines_of(into)
    assert found[:3] == ["5", "15", "25"] and found[-1].startswith("last")


def test_a_pattern_that_cannot_be_is_refused(site: Site, two_ranks: str) -> None:
    answer = site.root.get(f"/jobs/{two_ranks}/logs", params={"grep": "("})
    assert (answer.status_code, answer.json()["code"]) == (400, "bad_request")


def test_a_pattern_that_never_ends_is_given_up_and_the_server_answers_meanwhile(site: Site) -> None:
    job = site.submit(site.root, *python("print('a' * 50)"))["id"]
    site.ended(site.root, job)
    found: list[str] = []

    def search() -> None:
        answer = site.root.get(f"/jobs/{job}/logs", params={"grep": "(a|a)+$b"})
        found.extend(lines_of(list(events_of(answer))))

    searching = threading.Thread(target=search)
    searching.start()
    while searching.is_alive():
        began = time.monotonic()
        assert site.client(None).get("/healthz").status_code == 200
        assert time.monotonic() - began < 1.5
        time.sleep(0.1)
    assert len(found) == 1 and "nothing is shown from here on" in found[0]
    refused = site.root.get(f"/jobs/{job}/logs", params={"grep": "(a|a)+$b", "tail": 3})
    assert refused.status_code == 400


@pytest.mark.parametrize(
    "params", [{"cursor": "nonsense"}, {"tail": "-1"}, {"since": "yesterday"}, {"attempt": "0"}, {"follow": "perhaps"}]
)
def test_wrong_parameters_are_refused_before_the_stream_begins(
    site: Site, two_ranks: str, params: dict[str, str]
) -> None:
    assert site.root.get(f"/jobs/{two_ranks}/logs", params=params).status_code == 400


def test_a_follower_who_does_not_read_costs_nothing_and_catches_up(site: Site) -> None:
    """He reads nothing until far more than the shared news keeps has passed by."""
    code = (
        "import time\nfor i in range(300):\n    print(str(i) + ' ' + 'x' * 60000, flush=True)\n    time.sleep(0.01)\n"
    )
    job = site.submit(site.root, *python(code + "print('last 300', flush=True)"))["id"]
    host, port = site.note.url.removeprefix("http://").split(":")
    slow = socket.create_connection((host, int(port)))
    slow.sendall(
        f"GET /api/v1/jobs/{job}/logs?follow=1 HTTP/1.0\r\nhost: {host}\r\n"
        f"authorization: {site.root.headers['authorization']}\r\n\r\n".encode()
    )
    site.ended(site.root, job)
    values = dict(
        line.rsplit(" ", 1) for line in site.root.get("/metrics").text.splitlines() if not line.startswith("#")
    )
    assert float(values["shoal_followers"]) >= 1
    slow.settimeout(30)
    received = bytearray()
    while piece := slow.recv(1 << 20):
        received += piece
    slow.close()
    numbers = [
        line.partition(" ")[0] for line in lines_of(list(events_of(httpx.Response(200, content=_unchunked(received)))))
    ]
    assert numbers == [*map(str, range(300)), "last"]


def _unchunked(received: bytes | bytearray) -> bytes:
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    if b"chunked" not in head:
        return body
    whole = bytearray()
    while body:
        size, _, body = body.partition(b"\r\n")
        whole += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    return bytes(whole)


def test_watch_shows_the_job_now_and_whenever_it_changes_until_it_ends(site: Site) -> None:
    job = site.submit(site.root, *python(COUNTER))["id"]
    states = []
    with site.root.stream("GET", f"/jobs/{job}/watch") as answer:
        for event in events_of(answer):
            shown = json.loads(event["data"])
            states.append(shown["state"])
            if shown["state"] == "running":
                eventually((site.home.work / job).exists)
                go(site, job)
    assert states[-1] == "succeeded"
    assert "running" in states
    again = list(events_of(site.root.get(f"/jobs/{job}/watch")))
    assert [json.loads(event["data"])["state"] for event in again] == ["succeeded"]


def test_samples_are_json_lines(site: Site, two_ranks: str) -> None:
    answer = site.root.get(f"/jobs/{two_ranks}/samples")
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    for line in answer.text.splitlines():
        json.loads(line)


def test_streams_end_when_the_server_stops_and_go_on_at_the_next(tmp_path: Path) -> None:
    site = Site(Home(tmp_path / "own"))
    try:
        job = site.submit(site.root, *python(COUNTER))["id"]
        into: list[dict[str, str]] = []
        thread = follow(site.client(site.home.read_token()), job, into)
        watching = threading.Thread(
            target=lambda: site.client(site.home.read_token()).get(f"/jobs/{job}/watch"), daemon=True
        )
        watching.start()
        eventually(lambda: len(lines_of(into)) > 5)
        process.stop(site.home)
        thread.join(10)
        watching.join(10)
        assert not thread.is_alive() and not watching.is_alive()
        assert "event" not in into[-1]  # not the job's end
        before = site.note.url
        assert site.start().url == before
        rest: list[dict[str, str]] = []
        thread = follow(site.client(site.home.read_token()), job, rest, cursor=into[-1]["id"])
        eventually(lambda: len(lines_of(rest)) > 5)
        go(site, job)
        thread.join(30)
        assert whole(lines_of(into + rest))
        assert rest[-1]["event"] == "end"
    finally:
        process.stop(site.home)


def test_a_rank_that_is_not_there_is_named_with_those_that_are(site: Site, two_ranks: str) -> None:
    answer = site.root.get(f"/jobs/{two_ranks}/logs", params={"rank": "worker-7"})
    assert answer.status_code == 404
    assert "'worker-7'" in answer.json()["detail"] and "worker-0, worker-1" in answer.json()["detail"]


@pytest.mark.parametrize("params", [{}, {"grep": "nothing"}])
def test_a_silent_job_is_pinged_so_that_nobody_takes_its_stream_for_dead(site: Site, params: dict[str, str]) -> None:
    job = site.submit(site.root, *python("import time; print('up', flush=True); time.sleep(120)"))["id"]
    with site.root.stream("GET", f"/jobs/{job}/logs", params={"follow": "1", **params}, timeout=40) as answer:
        assert any(line.startswith(": ping") for line in answer.iter_lines())
    site.root.post(f"/jobs/{job}/stop", json={"force": True})
