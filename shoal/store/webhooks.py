"""Where a user wants his alarms, and every alarm on its way there with how the tries went."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, select, update

from shoal.job.life import Happening, JobRecord
from shoal.store.paging import Page, check_limit, cut, decode_cursor
from shoal.store.part import Part
from shoal.store.records import Delivery, Webhook
from shoal.store.tables import deliveries, webhooks
from shoal.store.words import from_json, plain, to_json

_WEBHOOK = select(webhooks).where(webhooks.c.owner == bindparam("owner"))
_DUE = (
    select(deliveries)
    .where(deliveries.c.next_at <= bindparam("now"))
    .order_by(deliveries.c.next_at, deliveries.c.seq)
    .limit(bindparam("limit"))
)
_MARK = (
    update(deliveries)
    .where(deliveries.c.seq == bindparam("which"))
    .values(
        tries=deliveries.c.tries + 1,
        next_at=bindparam("again"),
        delivered_at=bindparam("arrived"),
        status=bindparam("answer"),
        error=bindparam("fault"),
        tried_at=bindparam("at"),
    )
)
_DROP_PENDING = (
    update(deliveries)
    .where(deliveries.c.owner == bindparam("whose"), deliveries.c.next_at.is_not(None))
    .values(next_at=None, error="the webhook was removed")
)


class Webhooks(Part):
    def set_webhook(self, owner: str, url: str, secret: str, kinds: Iterable[str], now: float) -> Webhook:
        """One per user; setting it again replaces it."""
        kept = tuple(dict.fromkeys(kinds))
        row = {"owner": owner, "url": plain(url), "secret": plain(secret), "kinds": to_json(kept), "created_at": now}
        adding = self._insert(webhooks)
        changed = {name: adding.excluded[name] for name in ("url", "secret", "kinds", "created_at")}
        with self._database.write(safe=True) as connection:
            connection.execute(adding.on_conflict_do_update(index_elements=[webhooks.c.owner], set_=changed), row)
        return Webhook(owner, url, secret, kept, now)

    def webhook(self, owner: str) -> Webhook | None:
        with self._database.read() as connection:
            return _webhook(connection, owner)

    def remove_webhook(self, owner: str) -> None:
        """What was still on its way is given up. Removing none is no error."""
        with self._database.write(safe=True) as connection:
            connection.execute(delete(webhooks).where(webhooks.c.owner == owner))
            connection.execute(_DROP_PENDING, {"whose": owner})

    def enqueue_delivery(self, owner: str, kind: str, payload: dict[str, Any], now: float) -> int:
        """Its number. It is due at once."""
        with self._database.write() as connection:
            return _enqueue(connection, owner, kind, payload, now)

    def due_deliveries(self, now: float, limit: int = 20) -> tuple[Delivery, ...]:
        with self._database.read() as connection:
            return tuple(map(_delivery, connection.execute(_DUE, {"now": now, "limit": limit})))

    def mark_delivery(
        self, delivery_id: int, ok: bool, status: int | None, error: str | None, next_at: float | None, now: float
    ) -> None:
        """How a try went. Without `next_at` a failed one is given up."""
        values = {
            "which": delivery_id,
            "again": None if ok else next_at,
            "arrived": now if ok else None,
            "answer": status,
            "fault": None if error is None else plain(error),
            "at": now,
        }
        with self._database.write() as connection:
            connection.execute(_MARK, values)

    def deliveries(self, owner: str, limit: int = 50, cursor: str | None = None) -> Page[Delivery]:
        """Newest first."""
        check_limit(limit)
        query = select(deliveries).where(deliveries.c.owner == owner)
        if cursor is not None:
            query = query.where(deliveries.c.seq < decode_cursor(cursor, int))
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(deliveries.c.seq.desc()).limit(limit + 1)).all()
        return cut(rows, limit, lambda row: int(row.seq), _delivery)


def enqueue_alarm(connection: Connection, record: JobRecord, happening: Happening, now: float) -> None:
    """The alarm of a job's step, in that step's transaction, if its owner wants that kind."""
    hook = _webhook(connection, record.owner)
    if hook is None or happening.alarm not in hook.kinds:
        return
    job = {
        "id": record.id,
        "name": record.spec.title,
        "owner": record.owner,
        "project": record.project,
        "state": record.state.value,
        "reason": happening.reason.code,
        "message": happening.message,
        "advice": happening.reason.advice,
        "attempt": record.attempt,
        "exit_code": record.exit_code,
        "created_at": record.created_at,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
    }
    _enqueue(connection, record.owner, happening.alarm, {"kind": happening.alarm, "at": now, "job": job}, now)


def _enqueue(connection: Connection, owner: str, kind: str, payload: dict[str, Any], now: float) -> int:
    row = {"owner": owner, "kind": kind, "payload": to_json(payload), "created_at": now, "next_at": now}
    return int(connection.execute(insert(deliveries).returning(deliveries.c.seq), row).scalar_one())


def _webhook(connection: Connection, owner: str) -> Webhook | None:
    row = connection.execute(_WEBHOOK, {"owner": owner}).first()
    return None if row is None else Webhook(row.owner, row.url, row.secret, tuple(from_json(row.kinds)), row.created_at)


def _delivery(row: Any) -> Delivery:
    return Delivery(
        id=row.seq,
        owner=row.owner,
        kind=row.kind,
        payload=from_json(row.payload),
        created_at=row.created_at,
        tries=row.tries,
        next_at=row.next_at,
        delivered_at=row.delivered_at,
        status=row.status,
        error=row.error,
        tried_at=row.tried_at,
    )
