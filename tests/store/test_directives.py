from __future__ import annotations

from shoal.store import Store
from tests.store.making import NOW, running


def test_a_node_hears_what_is_for_it_and_what_is_for_all(store: Store) -> None:
    job = running(store, ("n1", "n2"))
    start = store.directives(job.key, "n1", 0)[-1]["seq"]
    to_one = store.direct(job.key, "restart", {"member": "worker-1"}, node="n2", now=NOW)
    to_all = store.direct(job.key, "stop", {"grace": 5}, now=NOW)
    assert [d["seq"] for d in store.directives(job.key, "n1", start)] == [to_all]
    assert store.directives(job.key, "n2", start) == [
        {"seq": to_one, "kind": "restart", "data": {"member": "worker-1"}},
        {"seq": to_all, "kind": "stop", "data": {"grace": 5}},
    ]
    assert store.directives(job.key, "n2", to_all) == []


def test_directives_of_all_gangs_are_followed_by_number(store: Store) -> None:
    one, two = running(store), running(store)
    start = store.directives_since(0, 100)[-1][0]
    first = store.direct(one.key, "stacks", {})
    second = store.direct(two.key, "restart", {}, node="n1")
    assert store.directives_since(start, 100) == [(first, one.key, None), (second, two.key, "n1")]
    assert store.directives_since(start, 1) == [(first, one.key, None)]
