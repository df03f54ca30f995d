from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import SQLAlchemyError

from shoal.errors import StoreError
from shoal.job.life import StopAsked
from shoal.store import Store
from tests.store.making import NOW, submit

OPEN_AS_NOBODY = """
import os, sys
from shoal.store import Store
from shoal.errors import StoreError
Store.open(sys.argv[2]).close()  # loads every module while that is still allowed
if os.getuid() == 0:
    os.setuid(65534)
try:
    Store.open(sys.argv[1])
except StoreError as error:
    print(error)
"""


def _said_to_nobody(url: str) -> str:
    """What Store.open says to a user without rights; root, for whom nothing is read-only, becomes one first."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", OPEN_AS_NOBODY, url, f"sqlite:///{folder}/any.db"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter, unlike pytest's."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-ro-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_a_read_only_file_is_refused_with_its_path(open_folder: Path) -> None:
    path = open_folder / "home.db"
    store = Store.open(f"sqlite:///{path}")
    store.close()
    path.chmod(0o444)
    open_folder.chmod(0o777)
    said = _said_to_nobody(f"sqlite:///{path}")
    assert str(path) in said
    assert "cannot be written" in said
    assert "writable" in said


def test_a_read_only_folder_is_refused_with_its_path(open_folder: Path) -> None:
    path = open_folder / "home.db"
    Store.open(f"sqlite:///{path}").close()
    path.chmod(0o444)
    open_folder.chmod(0o555)
    said = _said_to_nobody(f"sqlite:///{path}")
    assert str(path) in said
    assert "cannot be" in said


def test_a_database_that_cannot_be_created_is_refused_with_its_path(open_folder: Path, tmp_path: Path) -> None:
    open_folder.chmod(0o555)
    assert "cannot be created" in _said_to_nobody(f"sqlite:///{open_folder}/home.db")
    with pytest.raises(StoreError, match=r"missing/home.db cannot be created .*make its folder"):
        Store.open(f"sqlite:///{tmp_path}/missing/home.db")


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "home.db"
    path.write_text("dear diary, " * 1000)
    with pytest.raises(StoreError, match=r"home.db is not a SQLite database"):
        Store.open(f"sqlite:///{path}")
    assert path.read_text() == "dear diary, " * 1000


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder"):
        Store.open(f"sqlite:///{tmp_path}")


@pytest.mark.parametrize("url", ["", "nonsense", "sqlite://", "sqlite:///:memory:", "mysql://root:pw@host/db"])
def test_an_address_of_no_known_kind_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match="postgresql") as refused:
        Store.open(url)
    assert "pw" not in str(refused.value).replace("postgresql", "")


def test_an_unreachable_server_is_named_without_its_password() -> None:
    with pytest.raises(
        StoreError, match=r"127.0.0.1:1/shoal.*cannot be reached.*check that PostgreSQL runs"
    ) as refused:
        Store.open("postgresql+psycopg://ann:hush@127.0.0.1:1/shoal")
    assert "hush" not in str(refused.value)


def test_a_database_that_does_not_exist_says_so(postgres_url: str) -> None:
    with pytest.raises(StoreError, match=r"does not exist.*createdb"):
        Store.open(postgres_url.replace("/shoal_", "/nosuch_"))


def test_a_read_only_postgresql_is_refused(migrated_postgres_url: str) -> None:
    url = f"{migrated_postgres_url}&options=-cdefault_transaction_read_only%3Don"
    with pytest.raises(StoreError, match="is read-only"):
        Store.open(url)


def test_a_postgresql_that_cut_the_line_is_asked_again(postgres_url: str, migrated_postgres_url: str) -> None:
    store, other = Store.open(migrated_postgres_url), Store.open(postgres_url)
    job = submit(store)
    with other._database.write() as connection:
        connection.execute(text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"))
    assert store.job(job.id) == job
    store.close()
    other.close()


def test_a_full_disk_refuses_the_job_whole_and_loses_nothing(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/home.db")
    job = submit(store)

    @event.listens_for(store._database._safe_writer, "begin", insert=False)
    def no_room(connection: object) -> None:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")  # type: ignore[attr-defined]

    with pytest.raises(StoreError, match=r"home.db has no room left.*free room"):
        for _ in range(200):
            submit(store, command=["x" * 20_000])
    stored = store.counts()["queued"]
    event.remove(store._database._safe_writer, "begin", no_room)
    assert len(store.list_jobs(limit=500).items) == stored
    assert store.job(job.id) == job
    assert store.advance(job.id, StopAsked("ann"), NOW).ended_at == NOW
    store.close()


def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    Store.open(f"sqlite:///{tmp_path}/home.db").close()
    assert stat.S_IMODE((tmp_path / "home.db").stat().st_mode) == 0o600


def test_readers_do_not_wait_for_a_writer(sqlite_url: str) -> None:
    store = Store.open(sqlite_url)
    job = submit(store)
    with store._database.write() as connection:
        connection.execute(text("UPDATE jobs SET message = 'half done'"))
        seen: list[str] = []
        reader = threading.Thread(target=lambda: seen.append(store.job(job.id).message))
        reader.start()
        reader.join(30)
        assert seen == [""]
    assert store.job(job.id).message == "half done"
    store.close()


def test_many_threads_write_through_one_store(store: Store) -> None:
    threads = [threading.Thread(target=lambda: [submit(store) for _ in range(10)]) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.counts()["queued"] == 200


def test_closing_twice_is_no_error(store: Store) -> None:
    store.close()
    store.close()


def test_what_was_committed_survives_a_process_that_is_killed(sqlite_url: str) -> None:
    script = (
        "import os, signal, sys\n"
        "from shoal.store import Store\n"
        "from tests.store.making import submit\n"
        "store = Store.open(sys.argv[1])\n"
        "print(submit(store).id, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, sqlite_url], capture_output=True, text=True, env=os.environ)
    store = Store.open(sqlite_url)
    assert [line.id for line in store.list_jobs().items] == done.stdout.split()
    store.close()


def test_an_error_tells_no_secret_of_the_statement_or_the_address(store: Store) -> None:
    with pytest.raises(SQLAlchemyError) as caught:
        with store._database.write() as connection:
            connection.execute(text("INSERT INTO nowhere VALUES (:value)"), {"value": "token-of-ann"})
    assert "token-of-ann" not in str(caught.value)
    with pytest.raises(StoreError) as refused:
        Store.open("postgresql+psycopg://shoal@127.0.0.1:9/shoal?password=hidden&connect_timeout=1")
    assert "hidden" not in refused.value.message
