"""Webhook deliveries over real HTTP: signed, tried again, given up, written down."""

from __future__ import annotations

import asyncio
import hmac
import json
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from shoal.control.alarms import FIRST_PAUSE, MOST_TRIES, Alarms, check_url, pause_after, sign
from shoal.errors import BadRequest
from shoal.store import Delivery, Store

SECRET = "a secret of some length"


class Receiver:
    """Someone's web server: remembers what came and answers what it is told to."""

    def __init__(self) -> None:
        self.status = 204
        self.got: list[tuple[dict[str, str], bytes]] = []
        outer = self

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.got.append(({key.lower(): value for key, value in self.headers.items()}, body))
                self.send_response(outer.status)
                self.send_header("location", "/elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path}/home.db") as store:
        yield store


def send(store: Store) -> int:
    """One round of a server that comes, sends and goes."""

    async def once() -> int:
        alarms = Alarms(store)
        count = await alarms.send_due()
        running = asyncio.create_task(alarms.run())
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return count

    return asyncio.run(once())


def last(store: Store) -> Delivery:
    return store.deliveries("ann", 1, None).items[0]


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.01)


def make_due(store: Store, delivery: Delivery) -> None:
    """As if the pause were over; counts as a try, like the marks the sender makes."""
    store.mark_delivery(delivery.id, False, delivery.status, delivery.error, 0.0, 0.0)


def test_an_alarm_arrives_signed_and_is_written_down(store: Store, receiver: Receiver) -> None:
    store.set_webhook("ann", receiver.url, SECRET, ["failure"], 1.0)
    number = store.enqueue_delivery("ann", "failure", {"kind": "failure", "job": {"id": "x"}}, 1.0)
    assert send(store) == 1
    headers, body = receiver.got[0]
    assert json.loads(body) == {"kind": "failure", "job": {"id": "x"}}
    assert (headers["shoal-event"], headers["shoal-delivery"]) == ("failure", str(number))
    stamp, signature = headers["shoal-signature"].split(",")
    at = stamp.removeprefix("t=")
    expected = hmac.new(SECRET.encode(), f"{at}.{body.decode()}".encode(), sha256).hexdigest()
    assert signature == f"v1={expected}"
    done = last(store)
    assert done.delivered_at is not None and (done.status, done.tries, done.next_at) == (204, 1, None)
    assert send(store) == 0


@pytest.mark.parametrize("status", [500, 404, 302])
def test_a_refused_alarm_is_tried_again_later(store: Store, receiver: Receiver, status: int) -> None:
    receiver.status = status
    store.set_webhook("ann", receiver.url, SECRET, ["failure"], 1.0)
    store.enqueue_delivery("ann", "failure", {}, 1.0)
    send(store)
    tried = last(store)
    assert (tried.status, tried.tries, tried.delivered_at) == (status, 1, None)
    assert tried.next_at is not None and tried.tried_at is not None and tried.next_at > tried.tried_at
    assert len(receiver.got) == 1  # a redirect is not followed
    receiver.status = 200
    make_due(store, tried)
    send(store)
    assert last(store).delivered_at is not None


def test_nobody_at_the_address_is_a_failed_try_with_a_reason(store: Store) -> None:
    store.set_webhook("ann", "http://127.0.0.1:9/", SECRET, ["failure"], 1.0)
    store.enqueue_delivery("ann", "failure", {}, 1.0)
    send(store)
    assert last(store).error and last(store).next_at is not None


def test_an_address_that_confuses_the_library_does_not_keep_others_waiting(store: Store, receiver: Receiver) -> None:
    store.set_webhook("bob", "http://xn--0/", SECRET, ["failure"], 1.0)
    store.set_webhook("ann", receiver.url, SECRET, ["failure"], 1.0)
    store.enqueue_delivery("bob", "failure", {}, 1.0)
    store.enqueue_delivery("ann", "failure", {}, 2.0)
    send(store)
    assert last(store).delivered_at is not None
    given_up = store.deliveries("bob", 1, None).items[0]
    assert (given_up.tries, given_up.next_at) == (1, None)
    assert given_up.error is not None and "could not be sent" in given_up.error


def test_it_is_given_up_after_the_last_try(store: Store, receiver: Receiver) -> None:
    receiver.status = 500
    store.set_webhook("ann", receiver.url, SECRET, ["failure"], 1.0)
    store.enqueue_delivery("ann", "failure", {}, 1.0)
    for _ in range(MOST_TRIES - 1):
        make_due(store, last(store))
    send(store)
    assert (last(store).tries, last(store).next_at, last(store).delivered_at) == (MOST_TRIES, None, None)


def test_the_tries_spread_over_about_an_hour() -> None:
    pauses = [pause_after(tries) for tries in range(1, MOST_TRIES)]
    assert all(pause is not None for pause in pauses)
    total = sum(pause for pause in pauses if pause is not None)
    assert 0.7 * 3600 < total < 1.2 * 3600
    assert pauses[0] is not None and pauses[0] <= FIRST_PAUSE
    assert pause_after(MOST_TRIES) is None


def test_an_alarm_whose_webhook_is_gone_is_given_up(store: Store, receiver: Receiver) -> None:
    store.enqueue_delivery("ann", "failure", {}, 1.0)
    send(store)
    assert last(store).next_at is None and last(store).delivered_at is None
    assert receiver.got == []


def test_of_two_servers_only_one_sends(store: Store, receiver: Receiver) -> None:
    store.set_webhook("ann", receiver.url, SECRET, ["failure"], 1.0)
    store.enqueue_delivery("ann", "failure", {}, 1.0)
    lease = store.lease("alarms", "another server", 60)
    assert lease is not None
    assert send(store) == 0
    store.release(lease)
    assert send(store) == 1


def test_running_sends_at_once_when_woken_and_gives_the_lease_back(store: Store, receiver: Receiver) -> None:
    store.set_webhook("ann", receiver.url, SECRET, ["failure"], 1.0)

    async def scene() -> None:
        alarms = Alarms(store)
        running = asyncio.create_task(alarms.run())
        await asyncio.sleep(0.05)
        store.enqueue_delivery("ann", "failure", {}, 1.0)
        alarms.wake()
        await until(lambda: last(store).delivered_at is not None)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scene(), 30))
    assert store.lease("alarms", "another server", 60) is not None


def test_a_fault_of_the_store_does_not_end_the_sending(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def broken(*_: Any) -> Any:
        calls.append(1)
        raise OSError("the disk is full")

    monkeypatch.setattr(store, "due_deliveries", broken)

    async def scene() -> None:
        alarms = Alarms(store)
        running = asyncio.create_task(alarms.run())
        while len(calls) < 3:
            alarms.wake()
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_a_signature_covers_time_and_body() -> None:
    assert sign(SECRET, 1, b"a") != sign(SECRET, 2, b"a") != sign(SECRET, 2, b"b")


@pytest.mark.parametrize("url", ["http://example.org", "https://example.org:8443/x?y=1", "http://[::1]:80/"])
def test_web_addresses_are_taken(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    "url", ["", "example.org", "ftp://example.org", "file:///etc/passwd", "http://", "http://x:99999/", "http://a b/"]
)
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(BadRequest):
        check_url(url)
