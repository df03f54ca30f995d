"""What the server tells shepherds: a numbered list per gang, to all of its nodes or to one."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, insert, or_, select, text

from shoal._lib import clock
from shoal.store.part import Part, check_attempt
from shoal.store.tables import directives
from shoal.store.words import from_json, to_json

_FOR_NODE = (
    select(directives.c.seq, directives.c.kind, directives.c.data)
    .where(
        directives.c.key == bindparam("key"),
        directives.c.seq > bindparam("after"),
        or_(directives.c.node.is_(None), directives.c.node == bindparam("node")),
    )
    .order_by(directives.c.seq)
)
_SINCE = (
    select(directives.c.seq, directives.c.key, directives.c.node)
    .where(directives.c.seq > bindparam("after"))
    .order_by(directives.c.seq)
    .limit(bindparam("limit"))
)
# PostgreSQL hands out numbers before the transaction is visible; whoever follows them would miss one that comes late.
_IN_ORDER = text("SELECT pg_advisory_xact_lock(7301553022)")


class Directives(Part):
    def direct(
        self, key: str, kind: str, data: dict[str, Any], node: str | None = None, now: float | None = None
    ) -> int:
        """Tells a node, or all of the gang; the directive's number. NotFound."""
        with self._database.write() as connection:
            check_attempt(connection, key)
            return write_directive(connection, key, node, kind, data, clock.now() if now is None else now)

    def directives(self, key: str, node: str, after: int) -> list[dict[str, Any]]:
        """What the node was told past `after`, in order."""
        with self._database.read() as connection:
            rows = connection.execute(_FOR_NODE, {"key": key, "node": node, "after": after}).all()
        return [{"seq": row.seq, "kind": row.kind, "data": from_json(row.data)} for row in rows]

    def directives_since(self, seq: int, limit: int = 1000) -> list[tuple[int, str, str | None]]:
        """(seq, key, node) of all gangs past `seq`, also those that other servers wrote; none is ever skipped."""
        with self._database.read() as connection:
            return [tuple(row) for row in connection.execute(_SINCE, {"after": seq, "limit": limit})]


def write_directive(
    connection: Connection, key: str, node: str | None, kind: str, data: dict[str, Any], now: float
) -> int:
    """Must be the last statement of its transaction: on PostgreSQL other servers wait for its end."""
    if connection.dialect.name == "postgresql":
        connection.execute(_IN_ORDER)
    row = {"key": key, "node": node, "kind": kind, "data": to_json(data), "at": now}
    return int(connection.execute(insert(directives).returning(directives.c.seq), row).scalar_one())
