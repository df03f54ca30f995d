"""Every test of the store runs on both databases, each time on an empty one of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.store import Store
from tests.support.postgres import Cluster, postgres_cluster, postgres_url

__all__ = ["postgres_cluster", "postgres_url"]

Opener = Callable[[], Store]


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database with tables and nothing in them; copied, not migrated again, for each test."""
    path = tmp_path_factory.mktemp("template") / "home.db"
    Store.open(f"sqlite:///{path}").close()
    return path


@pytest.fixture(scope="session")
def migrated_database(postgres_cluster: Cluster) -> str:
    name, url = postgres_cluster.fresh()
    Store.open(url).close()
    return name


@pytest.fixture
def sqlite_url(tmp_path: Path, migrated_file: Path) -> str:
    path = tmp_path / "home.db"
    shutil.copy(migrated_file, path)
    return f"sqlite:///{path}"


@pytest.fixture
def migrated_postgres_url(postgres_cluster: Cluster, migrated_database: str) -> Iterator[str]:
    name, url = postgres_cluster.fresh(template=migrated_database)
    yield url
    postgres_cluster.drop(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest) -> str:
    name = "sqlite_url" if request.param == "sqlite" else "migrated_postgres_url"
    return str(request.getfixturevalue(name))


@pytest.fixture
def open_store(store_url: str) -> Iterator[Opener]:
    """Opens as many stores as a test wants on one database, as several servers would."""
    opened: list[Store] = []

    def one_more() -> Store:
        opened.append(Store.open(store_url))
        return opened[-1]

    yield one_more
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Opener) -> Store:
    return open_store()
