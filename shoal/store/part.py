"""What every part of the store stands on: the database, and the checks that several parts make in a transaction."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Insert, Table, bindparam, select
from sqlalchemy.dialects import postgresql, sqlite

from shoal.errors import LeaseLost, NotFound
from shoal.store.database import Database
from shoal.store.records import Lease
from shoal.store.tables import attempts, database_now, leases

_LEASE_HOLDS = (
    select(leases.c.token)
    .where(leases.c.name == bindparam("name"), leases.c.token == bindparam("token"), leases.c.until > database_now())
    # Shared, so that many may act under it; a new holder waits until those who still may are done.
    .with_for_update(read=True)
)
_ATTEMPT_EXISTS = select(attempts.c.key).where(attempts.c.key == bindparam("key"))


class Part:
    """A group of the store's methods. Lock order on PostgreSQL: jobs, leases, shepherds, ranks, attempts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def _insert(self, table: Table) -> sqlite.Insert | postgresql.Insert:
        """An INSERT that can say what happens on a conflict; both databases say it alike."""
        return sqlite.insert(table) if self._database.dialect == "sqlite" else postgresql.insert(table)

    def _add(self, connection: Connection, table: Table, row: dict[str, Any]) -> bool:
        """Inserts the row unless there is one of its key; whether it did. (An INSERT has no row count everywhere.)"""
        adding = self._insert(table).on_conflict_do_nothing().returning(*table.primary_key.columns)
        return connection.execute(adding, row).first() is not None


def check_lease(connection: Connection, lease: Lease | None) -> None:
    """LeaseLost unless it still holds, by the database's clock; no lease, no question."""
    if lease is None:
        return
    found = connection.execute(_LEASE_HOLDS, {"name": lease.name, "token": lease.token}).first()
    if found is None:
        raise LeaseLost(
            f"the lease {lease.name!r} (token {lease.token}) ran out or another server took it; take it again first",
            name=lease.name,
            token=lease.token,
        )


def check_attempt(connection: Connection, key: str) -> None:
    if connection.execute(_ATTEMPT_EXISTS, {"key": key}).first() is None:
        raise NotFound(f"there is no gang {key!r}; its job was removed or never was", key=key)


def insert_rows(connection: Connection, statement: Insert, rows: list[dict[str, Any]]) -> None:
    """One trip for many rows; none for none."""
    if rows:
        connection.execute(statement, rows)
