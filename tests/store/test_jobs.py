from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal._lib.ids import short_id
from shoal.errors import BadSpec, Conflict, NotFound
from shoal.job.life import JobRecord, StopAsked
from shoal.job.reasons import Reason
from shoal.job.spec import JobSpec, parse
from shoal.job.states import State
from shoal.store import Store
from tests.store.making import NOW, at_once, ended, place, record, running, submit

# What both databases can hold; parse() refuses the rest, or plain() replaces it.
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
moments = st.none() | st.floats(0, 4e9)
counts = st.integers(1, 50) | st.tuples(st.integers(1, 5), st.integers(5, 50)).map(lambda c: f"{c[0]}..{c[1]}")
resources = st.fixed_dictionaries(
    {"cpu": st.floats(0.01, 4096), "gpu": st.integers(1, 64)},
    optional={"memory": st.integers(1 << 20, 1 << 46), "gpu_type": names, "cpu_quota": st.booleans()},
) | st.fixed_dictionaries({}, optional={"cpu": st.floats(0.01, 4096), "memory": st.integers(1 << 20, 1 << 46)})
variables = st.dictionaries(st.from_regex(r"[A-RT-Z_][A-Z0-9_]{0,8}", fullmatch=True), texts, max_size=3)
roles = st.dictionaries(
    names.filter(lambda name: name not in ("worker", "server")),
    st.fixed_dictionaries(
        {"count": counts},
        optional={
            "resources": resources,
            "env": variables,
            "on_lost": st.sampled_from(["fail", "restart", "continue"]),
        },
    ),
    max_size=3,
)
raw_specs = st.fixed_dictionaries(
    {"command": st.lists(texts, min_size=1, max_size=4), "roles": roles},
    optional={
        "name": names,
        "strategy": st.just("native"),  # the others have a say in the roles
        "workers": counts,
        "resources": resources,
        "env": variables,
        "estimate": st.floats(1, 1000),
        "max_duration": st.floats(1000, 1e6),
        "grace": st.floats(0, 3600),
        "retries": st.integers(0, 100),
        "priority": st.sampled_from(["low", "normal", "high", "urgent"]),
        "tags": st.lists(names, max_size=4),
        "labels": st.dictionaries(names, names, max_size=2),
        "project": names,
        "key": texts.filter(bool),
        "on_overrun": st.sampled_from(["alert", "stop"]),
    },
)
records = st.builds(
    JobRecord,
    id=st.builds(short_id),
    owner=names,
    spec=raw_specs.map(parse),
    created_at=st.floats(0, 4e9),
    state=st.sampled_from(State),
    reason=st.sampled_from(Reason),
    message=texts,
    exit_code=st.none() | st.integers(-(2**31), 2**32),
    attempt=st.integers(0, 1000),
    retries_used=st.integers(0, 100),
    not_before=moments,
    placed_at=moments,
    started_at=moments,
    stopping_at=moments,
    ended_at=moments,
    outcome=st.none() | st.sampled_from(Reason),
    stop_grace=moments,
    overran=st.booleans(),
    manifest=st.none() | names,
    in_place=st.none() | texts,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(records)
def test_a_record_comes_back_exactly_as_it_was_submitted(store: Store, given_record: JobRecord) -> None:
    stored, created = store.submit(given_record, None)
    assert created
    assert stored == replace(given_record, seq=stored.seq)
    assert store.job(given_record.id) == stored


def test_the_same_key_of_the_same_owner_is_one_job(store: Store) -> None:
    first, created = store.submit(record(), "monday")
    again, created_again = store.submit(record(), "monday")
    other, created_other = store.submit(record(owner="bob"), "monday")
    assert (created, created_again, created_other) == (True, False, True)
    assert again == first
    assert other.id != first.id


def test_an_id_that_is_taken_is_a_conflict(store: Store) -> None:
    job = record()
    store.submit(job, None)
    with pytest.raises(Conflict, match=job.id):
        store.submit(job, None)


def test_a_submission_is_the_first_event(store: Store) -> None:
    job = submit(store)
    (first,) = store.events(job.id)
    assert (first.kind, first.reason, first.at) == ("queued", "admitted", NOW)


def test_text_that_a_database_refuses_is_stored_with_replacements(store: Store) -> None:
    job = submit(store)
    store.advance(job.id, StopAsked("ann", "a\0b\ud800c"), NOW)
    assert store.job(job.id).message == "a\ufffdb?c"


def test_an_unknown_job_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound, match="nosuch"):
        store.job("nosuch")


def test_a_job_is_found_by_id_by_the_beginning_of_its_id_and_by_name(store: Store) -> None:
    old = submit(store, name="digits")
    new = submit(store, name="digits")
    assert store.find(old.id, "ann").id == old.id
    assert store.find(old.id[:7], None).id == old.id
    assert store.find("digits", "ann").id == new.id


def test_find_sees_only_what_is_the_owners(store: Store) -> None:
    job = submit(store, name="digits")
    for ref in (job.id, job.id[:6], "digits"):
        with pytest.raises(NotFound):
            store.find(ref, "bob")


def test_an_ambiguous_beginning_lists_the_candidates(store: Store) -> None:
    for ident in ("abcd000001", "abcd000002"):
        store.submit(replace(record(), id=ident), None)
    with pytest.raises(Conflict, match="abcd000001, abcd000002"):
        store.find("abcd", None)
    assert store.find("abcd000002", None).id == "abcd000002"


def test_a_beginning_of_an_id_that_is_also_a_name_is_ambiguous(store: Store) -> None:
    store.submit(replace(record(), id="test000001"), None)
    named = submit(store, name="test")
    with pytest.raises(Conflict, match=named.id):
        store.find("test", None)


@pytest.mark.parametrize("ref", ["abc", "", "%", "____", "abcd%", "x" * 300, "\N{SNOWMAN}" * 4])
def test_what_is_no_reference_is_not_found(store: Store, ref: str) -> None:
    store.submit(replace(record(), id="abcd000001"), None)
    with pytest.raises(NotFound):
        store.find(ref, None)


def _walk(store: Store, limit: int = 7, **filters: Any) -> list[str]:
    found: list[str] = []
    cursor = None
    while True:
        page = store.list_jobs(limit=limit, cursor=cursor, **filters)
        found.extend(line.id for line in page.items)
        cursor = page.next
        if cursor is None:
            return found


def test_pages_hold_every_job_once_newest_first(store: Store) -> None:
    submitted = [submit(store).id for _ in range(22)]
    assert _walk(store) == submitted[::-1]
    assert _walk(store, limit=22) == submitted[::-1]
    assert store.list_jobs(limit=22).next is None


def test_each_filter_keeps_what_it_names(store: Store) -> None:
    mine = submit(store, name="Digits-big", project="vision", tags=["a", "b"])
    other = submit(store, owner="bob", name="other", framework="pytorch", tags=["b"])
    stopped = store.advance(submit(store, name="third").id, StopAsked("ann"), NOW)
    assert _walk(store, owner="bob") == [other.id]
    assert _walk(store, states=["stopped"]) == [stopped.id]
    assert _walk(store, states=[State.STOPPED, State.QUEUED]) == [stopped.id, other.id, mine.id]
    assert _walk(store, project="vision") == [mine.id]
    assert _walk(store, name="gits-B") == [mine.id]
    assert _walk(store, name="%") == []
    assert _walk(store, name="_") == []
    assert _walk(store, tag="b") == [other.id, mine.id]
    assert _walk(store, tag="a", owner="ann", states=["queued"]) == [mine.id]
    assert _walk(store, framework="pytorch") == [other.id]


def test_a_line_shows_what_a_list_needs(store: Store) -> None:
    job = running(store, nodes=("n1", "n2"), name="digits", workers=2, tags=["a", "b"], strategy="native")
    store.set_progress(job.key, {"worker-0": {"fraction": 0.5}, "worker-1": {"fraction": 0.25}}, NOW)
    (line,) = store.list_jobs().items
    assert (line.id, line.name, line.state, line.reason, line.owner) == (job.id, "digits", "running", "running", "ann")
    assert (line.workers, line.attempt, line.tags, line.strategy, line.framework) == (
        2, 1, ("a", "b"), "native", "command",
    )  # fmt: skip
    assert (line.created_at, line.started_at, line.ended_at, line.progress) == (NOW, NOW, None, 0.25)


@pytest.mark.parametrize(
    "cursor", ["", "x", "!!!!", "bnVsbA", "ImEi", "LTE", "MS41", "dHJ1ZQ", "\N{SNOWMAN}", "OTk5" * 20]
)
def test_a_wrong_cursor_is_refused(store: Store, cursor: str) -> None:
    with pytest.raises(BadSpec, match="cursor"):
        store.list_jobs(cursor=cursor)


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_a_page_size_out_of_bounds_is_refused(store: Store, limit: int) -> None:
    with pytest.raises(BadSpec, match="limit"):
        store.list_jobs(limit=limit)


def test_pages_walked_while_500_jobs_come_in_show_none_twice(store: Store) -> None:
    before = {submit(store).id for _ in range(40)}

    def submit_many() -> list[str]:
        for _ in range(250):
            submit(store)
        return []

    def walk() -> list[str]:
        seen: list[str] = []
        while store.counts()["queued"] < 540:
            seen = _walk(store)
            assert len(set(seen)) == len(seen)
            assert before <= set(seen)
        return seen

    results = at_once(submit_many, submit_many, walk)
    assert [r for r in results if isinstance(r, BaseException)] == []
    assert len(set(_walk(store, limit=100))) == 540


def test_counts_name_every_state(store: Store) -> None:
    submit(store)
    running(store)
    assert store.counts() == {
        "queued": 1, "starting": 0, "running": 1, "stopping": 0, "succeeded": 0, "failed": 0, "stopped": 0,
    }  # fmt: skip


def test_an_ended_job_is_removed_with_all_that_belongs_to_it(store: Store) -> None:
    job, kept = ended(store, tags=["a"]), ended(store, tags=["a"])
    store.delete_job(job.id)
    with pytest.raises(NotFound):
        store.job(job.id)
    with pytest.raises(NotFound):
        store.attempt(job.key)
    left = (*store.ranks(job.key), *store.shepherds(job.key), *store.attempts(job.id), *store.events(job.id))
    assert left == ()
    assert store.directives(job.key, "n1", 0) == []
    assert _walk(store, tag="a") == [kept.id]
    assert len(store.ranks(kept.key)) == 1


def test_a_job_that_has_not_ended_is_not_removed(store: Store) -> None:
    job = running(store)
    with pytest.raises(Conflict, match=f"shoal stop {job.id}"):
        store.delete_job(job.id)
    assert store.job(job.id) == job


def test_numbers_of_removed_jobs_are_not_given_again(store: Store) -> None:
    gone = ended(store)
    store.delete_job(gone.id)
    assert submit(store).seq > gone.seq


def test_last_change_grows_with_every_change(store: Store) -> None:
    job = submit(store)
    seen = [store.last_change(job.id)]

    def note() -> None:
        seen.append(store.last_change(job.id))

    job = place(store, job)
    note()
    store.join(job.key, "n1", "a", "h", {}, 1, NOW)
    note()
    store.rank_events(job.key, "n1", [{"n": 1, "member": "worker-0", "event": "started", "pid": 1}], NOW)
    note()
    store.set_progress(job.key, {"worker-0": {"fraction": 0.1}}, NOW)
    note()
    store.add_event(job.id, "note", "running", "hello", None, NOW)
    note()
    store.set_rank(job.key, "worker-0", state="gone")
    note()
    assert seen == sorted(set(seen))
    with pytest.raises(NotFound):
        store.last_change("nosuch")


def test_specifications_are_read_again_by_the_model_that_wrote_them() -> None:
    spec = parse({"script": "a.py", "workers": "2..4", "resources": {"memory": "2GiB"}, "estimate": "20m"})
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


def test_what_was_accepted_once_stays_readable_when_rules_between_keys_are_tightened(store: Store) -> None:
    """Today's rules refuse a GPU type without GPUs; a record of the time before must not break the loop."""
    old = record()
    unruly = old.spec.resources.model_copy(update={"gpu_type": "h200"})
    stored, _ = store.submit(replace(old, spec=old.spec.model_copy(update={"resources": unruly})), None)
    assert store.job(stored.id).spec.resources.gpu_type == "h200"
