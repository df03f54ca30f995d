"""The shape of the database: finds its revision and brings it to the one this Shoal speaks, or says why not."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from shoal.errors import StoreError
from shoal.store import migrations
from shoal.store.database import Database

# Any number that is Shoal's alone: servers that start at once on one PostgreSQL migrate one after the other.
_MIGRATION_LOCK = 7_301_553_021


def prepare(database: Database, create: bool) -> None:
    """Migrates to the newest revision. Cheap when there is nothing to do: one small read."""
    with database.read() as connection:
        found = _revision(connection)
    if found == migrations.HEAD:
        _check_writable(database)
        return
    if found is None and not create:
        raise StoreError(f"the database {database.where} is empty; start a server on it first: 'shoal server start'")
    _check_known(found, database.where)
    with database.write(safe=True) as connection:
        if database.dialect == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _MIGRATION_LOCK})
        found = _revision(connection)
        _check_known(found, database.where)
        if found is None:
            _check_ours(connection, database.where)
        if found != migrations.HEAD:
            _upgrade(connection)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return found


def _check_known(found: str | None, where: str) -> None:
    if found is not None and found not in migrations.REVISIONS:
        raise StoreError(
            f"the database {where} has revision {found}, which is newer than this Shoal ({migrations.HEAD}); "
            "upgrade Shoal ('pip install --upgrade shoal'), or use another database",
            found=found,
            newest=migrations.HEAD,
        )


def _check_ours(connection: Connection, where: str) -> None:
    """A file with tables but no revision belongs to another program; creating ours in it would mix the two."""
    if connection.dialect.name != "sqlite":
        return
    foreign = inspect(connection).get_table_names()
    if foreign:
        raise StoreError(
            f"the database {where} belongs to another program (it has a table {foreign[0]!r}); "
            "move it away or name another file"
        )


def _check_writable(database: Database) -> None:
    """A read-only database is refused now, not at the first job."""
    with database.write() as connection:
        connection.execute(text("UPDATE meta SET value = value WHERE name = ''"))


def _upgrade(connection: Connection) -> None:
    # Imported here: most starts find the newest revision and need nothing of Alembic.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
