from __future__ import annotations

from shoal.store import Store, Webhook
from tests.store.making import NOW


def test_a_user_has_one_webhook(store: Store) -> None:
    assert store.webhook("ann") is None
    store.set_webhook("ann", "https://one", "s1", ["failure"], NOW)
    store.set_webhook("ann", "https://two", "s2", ("success", "failure", "success"), NOW + 1)
    assert store.webhook("ann") == Webhook("ann", "https://two", "s2", ("success", "failure"), NOW + 1)
    store.remove_webhook("ann")
    store.remove_webhook("ann")
    assert store.webhook("ann") is None


def test_a_delivery_is_due_until_it_arrives(store: Store) -> None:
    number = store.enqueue_delivery("ann", "failure", {"job": {"id": "x"}}, NOW)
    (due,) = store.due_deliveries(NOW, 10)
    assert (due.id, due.owner, due.payload, due.tries) == (number, "ann", {"job": {"id": "x"}}, 0)
    store.mark_delivery(number, False, 503, "unavailable", NOW + 30, NOW + 1)
    assert store.due_deliveries(NOW + 29, 10) == ()
    (again,) = store.due_deliveries(NOW + 30, 10)
    assert (again.tries, again.status, again.error, again.tried_at) == (1, 503, "unavailable", NOW + 1)
    store.mark_delivery(number, True, 200, None, None, NOW + 31)
    assert store.due_deliveries(NOW + 999, 10) == ()
    (log,) = store.deliveries("ann").items
    assert (log.tries, log.status, log.error, log.delivered_at) == (2, 200, None, NOW + 31)


def test_a_delivery_without_a_next_time_is_given_up(store: Store) -> None:
    number = store.enqueue_delivery("ann", "failure", {}, NOW)
    store.mark_delivery(number, False, None, "no such host", None, NOW)
    assert store.due_deliveries(NOW + 999) == ()
    assert store.deliveries("ann").items[0].delivered_at is None


def test_the_delivery_log_is_paged_newest_first(store: Store) -> None:
    numbers = [store.enqueue_delivery("ann", "success", {}, NOW) for _ in range(5)]
    store.enqueue_delivery("bob", "success", {}, NOW)
    first = store.deliveries("ann", limit=3)
    rest = store.deliveries("ann", limit=3, cursor=first.next)
    assert [d.id for d in (*first.items, *rest.items)] == numbers[::-1]
    assert rest.next is None


def test_what_was_under_way_is_given_up_with_the_webhook(store: Store) -> None:
    store.set_webhook("ann", "https://one", "s1", ["failure"], NOW)
    store.enqueue_delivery("ann", "failure", {}, NOW)
    store.remove_webhook("ann")
    assert store.due_deliveries(NOW + 1) == ()
    assert store.deliveries("ann").items[0].error == "the webhook was removed"
