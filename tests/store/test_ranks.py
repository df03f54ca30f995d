from __future__ import annotations

from typing import Any

import pytest

from shoal.errors import BadSpec, NotFound
from shoal.job.gang import RankEnd
from shoal.store import RankRow, Store
from tests.store.making import NOW, place, running, submit


def _started(n: int, incarnation: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "n": n,
        "member": "worker-0",
        "incarnation": incarnation,
        "event": "started",
        "at": NOW + n,
        "pid": 7,
        **more,
    }


def _ended(n: int, incarnation: int = 0, **more: Any) -> dict[str, Any]:
    return {"n": n, "member": "worker-0", "incarnation": incarnation, "event": "ended", "at": NOW + n, **more}


def _rank(store: Store, key: str) -> RankRow:
    return store.ranks(key)[0]


def test_a_rank_starts_and_ends(store: Store) -> None:
    key = running(store).key
    assert store.rank_events(key, "n1", [_started(1)], NOW)
    rank = _rank(store, key)
    assert (rank.state, rank.pid, rank.started_at, rank.life().end) == ("running", 7, NOW + 1, None)
    assert store.rank_events(key, "n1", [_ended(2, exit_code=3, oom=True, message="why", tail="last\n")], NOW)
    rank = _rank(store, key)
    assert (rank.state, rank.exit_code, rank.ended_at, rank.pid) == ("ended", 3, NOW + 2, 7)
    assert rank.life().end == RankEnd(exit_code=3, oom=True, message="why", tail="last\n")
    assert store.shepherds(key)[0].last_event == 2


def test_a_rank_says_what_it_waits_for_until_it_starts(store: Store) -> None:
    key = running(store).key
    waits = {**_started(1), "event": "preparing", "message": "building environment x"}
    assert store.rank_events(key, "n1", [waits], NOW)
    assert (_rank(store, key).state, _rank(store, key).message) == ("waiting", "building environment x")
    assert store.rank_events(key, "n1", [_started(2)], NOW)
    assert (_rank(store, key).state, _rank(store, key).message) == ("running", "")


def test_start_and_end_may_come_in_one_message(store: Store) -> None:
    key = running(store).key
    assert store.rank_events(key, "n1", [_ended(2, signal=9), _started(1)], NOW)
    rank = _rank(store, key)
    assert (rank.state, rank.signal, rank.exit_code, rank.started_at) == ("ended", 9, None, NOW + 1)


def test_a_failed_start_is_an_end(store: Store) -> None:
    key = running(store).key
    store.rank_events(
        key, "n1", [{"n": 1, "member": "worker-0", "event": "failed_start", "message": "no such file"}], NOW
    )
    end = _rank(store, key).life().end
    assert end is not None
    assert (end.failed_start, end.message, end.clean) == (True, "no such file", False)


def test_what_was_told_before_is_ignored(store: Store) -> None:
    key = running(store).key
    store.rank_events(key, "n1", [_started(1), _ended(2, exit_code=0)], NOW)
    seen = store.last_change(key.rpartition("-")[0])
    assert not store.rank_events(key, "n1", [_started(1), _ended(2, exit_code=9)], NOW + 1)
    assert not store.rank_events(key, "n1", [], NOW + 1)
    assert _rank(store, key).exit_code == 0
    assert store.last_change(key.rpartition("-")[0]) == seen


def test_the_end_of_an_incarnation_that_is_over_is_ignored(store: Store) -> None:
    key = running(store).key
    store.rank_events(key, "n1", [_started(1), _ended(2, exit_code=1)], NOW)
    store.set_rank(key, "worker-0", state="waiting", incarnation=1)
    rank = _rank(store, key)
    assert (rank.state, rank.incarnation, rank.exit_code, rank.pid, rank.tail) == ("waiting", 1, None, None, "")
    assert not store.rank_events(key, "n1", [_ended(3, exit_code=1)], NOW)
    assert store.rank_events(key, "n1", [_started(4, incarnation=1, pid=8)], NOW)
    rank = _rank(store, key)
    assert (rank.state, rank.incarnation, rank.pid) == ("running", 1, 8)


def test_a_newer_incarnation_than_known_counts(store: Store) -> None:
    key = running(store).key
    store.rank_events(key, "n1", [_started(1), _ended(2, exit_code=1), _started(3, incarnation=1, pid=9)], NOW)
    rank = _rank(store, key)
    assert (rank.state, rank.incarnation, rank.pid, rank.exit_code) == ("running", 1, 9, None)


def test_a_rank_that_is_gone_stays_gone(store: Store) -> None:
    key = running(store).key
    store.rank_events(key, "n1", [_started(1), _ended(2, exit_code=1)], NOW)
    store.set_rank(key, "worker-0", state="gone")
    assert not store.rank_events(key, "n1", [_started(3, incarnation=5)], NOW)
    rank = _rank(store, key)
    assert (rank.state, rank.exit_code) == ("gone", 1)


def test_every_shepherd_numbers_for_itself(store: Store) -> None:
    key = running(store, ("n1", "n2")).key
    assert store.rank_events(key, "n1", [_started(1)], NOW)
    assert store.rank_events(key, "n2", [_started(1, member="worker-1")], NOW)
    assert [rank.state for rank in store.ranks(key)] == ["running", "running"]


@pytest.mark.parametrize(
    "change", [{"event": "exploded"}, {"member": "worker-1"}, {"member": "nobody"}, {"member": None}]
)
def test_an_event_that_makes_no_sense_takes_nothing(store: Store, change: dict[str, Any]) -> None:
    key = running(store, ("n1", "n2")).key
    with pytest.raises(BadSpec, match="makes no sense"):
        store.rank_events(key, "n1", [_started(1), _ended(2, **change)], NOW)
    assert _rank(store, key).state == "waiting"
    assert store.shepherds(key)[0].last_event == 0


def test_a_shepherd_that_never_joined_is_not_heard(store: Store) -> None:
    key = place(store, submit(store)).key
    with pytest.raises(NotFound, match="join first"):
        store.rank_events(key, "n1", [_started(1)], NOW)


def test_bytes_that_no_database_takes_are_replaced(store: Store) -> None:
    key = running(store).key
    store.rank_events(key, "n1", [_ended(1, exit_code=1, tail="a\0b\udc80", message="\0")], NOW)
    rank = _rank(store, key)
    assert (rank.tail, rank.message) == ("a\ufffdb?", "\ufffd")


def test_progress_is_kept_and_the_slowest_counts_for_the_job(store: Store) -> None:
    key = running(store, ("n1", "n2")).key
    store.set_progress(key, {"worker-1": {"fraction": 0.75, "loss": "nan"}}, NOW + 1)
    assert store.list_jobs().items[0].progress == 0.75
    store.set_progress(key, {"worker-0": {"done": 1, "total": 4, "fraction": 0.25}, "nobody": {"fraction": 0}}, NOW + 2)
    assert store.list_jobs().items[0].progress == 0.25
    assert [(r.progress, r.progress_at) for r in store.ranks(key)] == [
        ({"done": 1, "total": 4, "fraction": 0.25}, NOW + 2),
        ({"fraction": 0.75, "loss": "nan"}, NOW + 1),
    ]


@pytest.mark.parametrize("fraction", ["half", None, True, float("nan"), float("inf")])
def test_a_fraction_that_is_no_number_does_not_count(store: Store, fraction: Any) -> None:
    key = running(store).key
    store.set_progress(key, {"worker-0": {"fraction": fraction}}, NOW)
    assert store.list_jobs().items[0].progress is None


def test_a_rank_that_starts_anew_has_no_progress(store: Store) -> None:
    key = running(store).key
    store.set_progress(key, {"worker-0": {"fraction": 0.5}}, NOW)
    store.set_rank(key, "worker-0", state="waiting", incarnation=1)
    assert _rank(store, key).progress == {}
    assert store.list_jobs().items[0].progress is None


def test_only_known_states_of_known_ranks_can_be_set(store: Store) -> None:
    key = running(store).key
    with pytest.raises(BadSpec, match="asleep"):
        store.set_rank(key, "worker-0", state="asleep")
    with pytest.raises(NotFound, match="worker-9"):
        store.set_rank(key, "worker-9", state="gone")
