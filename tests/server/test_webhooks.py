from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.control.test_alarms import Receiver
from tests.server.conftest import Site, eventually

pytestmark = pytest.mark.real


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def test_a_webhook_is_set_shown_without_its_secret_tried_and_removed(site: Site, receiver: Receiver) -> None:
    client = site.user("wim")
    assert client.get("/webhook").status_code == 404
    assert client.post("/webhook/test").status_code == 404
    made = client.put("/webhook", json={"url": receiver.url}).json()
    assert len(made["secret"]) >= 32
    shown = client.get("/webhook").json()
    assert shown["url"] == receiver.url and "secret" not in shown
    assert client.post("/webhook/test").status_code == 202
    eventually(lambda: receiver.got)
    delivered = eventually(
        lambda: [d for d in client.get("/webhook/deliveries").json()["deliveries"] if d["delivered_at"]]
    )
    assert (delivered[0]["kind"], delivered[0]["status"]) == ("test", 204)
    assert client.delete("/webhook").status_code == 204
    assert client.get("/webhook").status_code == 404


def test_the_end_of_a_job_reaches_its_owners_webhook(site: Site, receiver: Receiver) -> None:
    client = site.user("xena")
    client.put("/webhook", json={"url": receiver.url, "kinds": ["failure"]})
    good, bad = site.submit(client, "true"), site.submit(client, "false", retries=0)
    site.ended(client, good["id"])
    site.ended(client, bad["id"])
    eventually(lambda: receiver.got)
    kinds = [delivery["kind"] for delivery in client.get("/webhook/deliveries").json()["deliveries"]]
    assert kinds == ["failure"]


@pytest.mark.parametrize(
    "body",
    [
        {"url": "file:///etc/passwd"},
        {"url": "http://x", "kinds": ["birthday"]},
        {"url": "http://x", "secret": "short"},
        {},
    ],
)
def test_a_webhook_that_cannot_be_is_refused(site: Site, body: dict[str, object]) -> None:
    assert site.root.put("/webhook", json=body).status_code == 400
