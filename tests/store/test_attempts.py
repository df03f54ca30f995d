from __future__ import annotations

import pytest

from shoal.errors import NotFound
from shoal.store import Store
from tests.store.making import NOW, join, place, running, submit


def test_a_gang_is_joined_when_its_last_node_joins(store: Store) -> None:
    job = place(store, submit(store), ("n1", "n2"))
    assert not join(store, job.key, "n1")
    assert not join(store, job.key, "n1")
    assert join(store, job.key, "n2")
    assert join(store, job.key, "n1", now=NOW + 1)


def test_a_shepherd_is_remembered_as_it_last_announced_itself(store: Store) -> None:
    job = place(store, submit(store))
    assert store.shepherds(job.key) == ()
    join(store, job.key, port=4000)
    join(store, job.key, port=4001, now=NOW + 5)
    (shepherd,) = store.shepherds(job.key)
    assert (shepherd.node, shepherd.address, shepherd.host, shepherd.pid) == ("n1", "10.0.0.1", "host", 77)
    assert shepherd.ports == {"worker-0": {"master": 4001}}
    assert (shepherd.joined_at, shepherd.last_seen, shepherd.done_at, shepherd.last_event) == (NOW, NOW + 5, None, 0)


def test_a_node_without_a_place_in_the_gang_cannot_join(store: Store) -> None:
    job = place(store, submit(store))
    with pytest.raises(NotFound, match="n9"):
        join(store, job.key, "n9")
    with pytest.raises(NotFound):
        join(store, "nosuch-1")


def test_only_the_first_completes_the_gang(store: Store) -> None:
    job = place(store, submit(store))
    join(store, job.key)
    assert store.complete(job.key, NOW + 1)
    assert not store.complete(job.key, NOW + 2)
    attempt = store.attempt(job.key)
    assert (attempt.complete_at, attempt.roster_version) == (NOW + 1, 1)
    (launch,) = store.directives(job.key, "n1", 0)
    assert (launch["kind"], launch["data"]) == ("launch", {"roster": 1})


def test_the_roster_grows_by_one_version(store: Store) -> None:
    job = running(store)
    assert [store.bump_roster(job.key), store.bump_roster(job.key)] == [2, 3]
    assert store.attempt(job.key).roster_version == 3


def test_a_gang_is_done_when_its_last_node_is(store: Store) -> None:
    job = running(store, ("n1", "n2"))
    assert not store.done(job.key, "n2", NOW + 1)
    assert not store.done(job.key, "n2", NOW + 2)
    assert store.done(job.key, "n1", NOW + 3)
    assert store.done(job.key, "n1", NOW + 4)
    assert [s.done_at for s in store.shepherds(job.key)] == [NOW + 3, NOW + 1]


def test_who_never_joined_cannot_be_done(store: Store) -> None:
    job = place(store, submit(store))
    with pytest.raises(NotFound, match="join first"):
        store.done(job.key, "n1", NOW)


def test_the_engines_handle_is_kept(store: Store) -> None:
    job = place(store, submit(store))
    store.set_handle(job.key, "pid:7", None)
    assert store.attempt(job.key).handle == "pid:7"


def test_an_unknown_gang_is_not_found(store: Store) -> None:
    for question in (
        lambda: store.attempt("nosuch-1"),
        lambda: store.set_handle("nosuch-1", "h", None),
        lambda: store.complete("nosuch-1", NOW),
        lambda: store.bump_roster("nosuch-1"),
        lambda: store.direct("nosuch-1", "stop", {}, now=NOW),
    ):
        with pytest.raises(NotFound, match="nosuch-1"):
            question()


def test_touching_tells_when_many_shepherds_were_last_seen(store: Store) -> None:
    job = running(store, ("n1", "n2", "n3"))
    store.touch([(job.key, "n1"), (job.key, "n3"), ("nosuch-1", "n1")], NOW + 9)
    store.touch([], NOW + 10)
    assert [s.last_seen for s in store.shepherds(job.key)] == [NOW + 9, NOW, NOW + 9]
