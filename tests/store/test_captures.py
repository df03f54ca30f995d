"""What is kept of a run besides its life, on both databases."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, text

from shoal.errors import NotFound
from shoal.store import InputRow, Store

from .making import ended, place, record, running, submit


def test_the_origin_comes_back_as_it_was_and_the_diff_apart(store: Store) -> None:
    origin = {"host": "h", "git": {"commit": "c", "branch": "名"}, "command": ["a", "\0", "\ud800"]}
    job, _ = store.submit(record(), None, origin, "-a\n+b\0\n")
    assert store.origin(job.id) == origin and store.diff(job.id) == "-a\n+b\ufffd\n"


def test_a_job_without_an_origin_has_none(store: Store) -> None:
    job = submit(store)
    assert store.origin(job.id) is None and store.diff(job.id) is None


def test_the_same_key_again_keeps_the_first_origin(store: Store) -> None:
    first, _ = store.submit(record(), "key", {"host": "one"}, None)
    again, created = store.submit(record(), "key", {"host": "two"}, "diff")
    assert (again.id, created) == (first.id, False)
    assert store.origin(first.id) == {"host": "one"} and store.diff(first.id) is None


def test_the_last_word_of_a_node_stands(store: Store) -> None:
    job = running(store, nodes=("n1", "n2"))
    store.put_record(job.key, "n1", {"host": {"host": "a"}})
    store.put_record(job.key, "n1", {"host": {"host": "a"}, "packages": {"torch": "1"}})
    store.put_record(job.key, "n2", {})
    assert store.records(job.id) == {job.key: {"n1": {"host": {"host": "a"}, "packages": {"torch": "1"}}, "n2": {}}}


def test_records_are_kept_by_attempt(store: Store) -> None:
    one, other = running(store), running(store)
    store.put_record(one.key, "n1", {"a": 1})
    assert store.records(other.id) == {}


def test_an_input_that_changed_between_two_nodes_is_marked(store: Store) -> None:
    job = running(store)
    store.put_input(job.key, "data", "aa", 2, 10)
    store.put_input(job.key, "data", "aa", 2, 10)
    assert store.inputs(job.id) == {job.key: {"data": InputRow("aa", 2, 10)}}
    store.put_input(job.key, "data", "bb", 2, 11)
    store.put_input(job.key, "data", "aa", 2, 10)
    assert store.inputs(job.id) == {job.key: {"data": InputRow("aa", 2, 10, mixed=True)}}


def test_a_gang_that_is_gone_has_no_record(store: Store) -> None:
    with pytest.raises(NotFound):
        store.put_record("nobody-1", "n1", {})
    with pytest.raises(NotFound):
        store.put_input("nobody-1", "data", "aa", 1, 1)


def test_a_removed_job_leaves_nothing_of_them(store: Store, store_url: str) -> None:
    job = ended(store)
    store.put_record(job.key, "n1", {"a": 1})
    store.put_input(job.key, "data", "aa", 1, 1)
    other, _ = store.submit(record(), None, {"host": "h"}, "diff")
    place(store, other)
    store.delete_job(job.id)
    engine = create_engine(store_url)
    with engine.connect() as connection:
        counts = [
            connection.execute(text(f"SELECT count(*) FROM {t}")).scalar() for t in ("records", "inputs", "origins")
        ]
    engine.dispose()
    assert counts == [0, 0, 1]


def test_a_database_of_the_first_version_is_brought_up_with_its_jobs(tmp_path: object) -> None:
    from alembic import command
    from alembic.config import Config

    from shoal.store import migrations
    from shoal.store.database import connect

    url = f"sqlite:///{tmp_path}/old.db"
    database = connect(url)
    config = Config()
    config.set_main_option("script_location", str(next(iter(migrations.__path__))))
    with database.write() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    database.close()
    with Store.open(url) as store:
        job, _ = store.submit(record(), None, {"host": "h"})
        assert store.origin(job.id) == {"host": "h"}
