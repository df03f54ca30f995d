from __future__ import annotations

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, text

from shoal.errors import StoreError
from shoal.store import Store, migrations
from shoal.store.tables import metadata
from tests.store.making import at_once, submit


def _empty_url(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> str:
    return f"sqlite:///{tmp_path}/new.db" if kind == "sqlite" else str(request.getfixturevalue("postgres_url"))


def test_the_migrations_make_exactly_the_tables_of_the_code(store_url: str) -> None:
    engine = create_engine(store_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": False})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_the_list_of_revisions_is_the_folder_of_revisions() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    shipped = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert shipped[::-1] == list(migrations.REVISIONS)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_servers_that_start_at_once_on_an_empty_database_migrate_it_once(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    url = _empty_url(request, tmp_path, kind)
    stores = at_once(*[lambda: Store.open(url)] * 3)
    assert [s for s in stores if not isinstance(s, Store)] == []
    for one in stores:
        assert isinstance(one, Store)
        assert submit(one).seq
        one.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_an_empty_database_is_not_filled_unasked(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    url = _empty_url(request, tmp_path, kind)
    with pytest.raises(StoreError, match="shoal server start"):
        Store.open(url, create=False)
    assert not (tmp_path / "new.db").exists()


def test_a_database_of_a_newer_version_is_refused_and_left_alone(store_url: str) -> None:
    engine = create_engine(store_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreError, match=r"revision 9999.*newer than this Shoal.*upgrade Shoal"):
        Store.open(store_url)
    with engine.begin() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == "9999"
    engine.dispose()


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/other.db")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE recipes (name TEXT)"))
    with pytest.raises(StoreError, match="recipes"):
        Store.open(f"sqlite:///{tmp_path}/other.db")
    with engine.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM sqlite_master")).scalar() == 1
    engine.dispose()
