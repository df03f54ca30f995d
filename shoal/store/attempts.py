"""Attempts and the shepherds that join them. Who joined and who is done is counted in the attempt, once per node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import bindparam, exists, select, update

from shoal.errors import NotFound
from shoal.store.directives import write_directive
from shoal.store.part import Part, check_attempt, check_lease
from shoal.store.records import Attempt, Lease, Shepherd
from shoal.store.tables import attempts, ranks, shepherds
from shoal.store.words import from_json, plain, read_placement, to_json

_FIELDS = (
    "key", "job_id", "number", "handle", "created_at", "complete_at", "ended_at", "reason", "message", "exit_code",
    "roster_version", "nodes", "placement",
)  # fmt: skip
_ATTEMPTS = select(*(attempts.c[name] for name in _FIELDS))
_ONE = _ATTEMPTS.where(attempts.c.key == bindparam("key"))
_OF_JOB = _ATTEMPTS.where(attempts.c.job_id == bindparam("job")).order_by(attempts.c.number)
_OPEN = _ATTEMPTS.where(attempts.c.ended_at.is_(None)).order_by(attempts.c.key)
_SHEPHERDS = select(shepherds).where(shepherds.c.key == bindparam("key")).order_by(shepherds.c.node)

_this_attempt = update(attempts).where(attempts.c.key == bindparam("which"))
_this_shepherd = update(shepherds).where(shepherds.c.key == bindparam("which"), shepherds.c.node == bindparam("where"))
_SET_HANDLE = _this_attempt.values(handle=bindparam("handle"))
_COUNT_JOINED = _this_attempt.values(joined=attempts.c.joined + 1, changes=attempts.c.changes + 1).returning(
    attempts.c.joined, attempts.c.nodes
)
_COUNT_DONE = _this_attempt.values(done=attempts.c.done + 1, changes=attempts.c.changes + 1).returning(
    attempts.c.done, attempts.c.nodes
)
_COMPLETE = _this_attempt.where(attempts.c.complete_at.is_(None)).values(
    complete_at=bindparam("at"), roster_version=1, changes=attempts.c.changes + 1
)
_BUMP = _this_attempt.values(roster_version=attempts.c.roster_version + 1, changes=attempts.c.changes + 1).returning(
    attempts.c.roster_version
)
_CAME_BACK = _this_shepherd.values({name: bindparam(name) for name in ("address", "host", "ports", "pid", "last_seen")})
_LEFT = _this_shepherd.where(shepherds.c.done_at.is_(None)).values(done_at=bindparam("at"), last_seen=bindparam("at"))
_SEEN = _this_shepherd.values(last_seen=bindparam("at"))
_COUNTED = select(attempts.c.joined, attempts.c.done, attempts.c.nodes).where(attempts.c.key == bindparam("key"))
_HAS_NODE = select(exists().where(ranks.c.key == bindparam("key"), ranks.c.node == bindparam("node")))
_HAS_JOINED = select(exists().where(shepherds.c.key == bindparam("key"), shepherds.c.node == bindparam("node")))


class Attempts(Part):
    def attempt(self, key: str) -> Attempt:
        """NotFound without it."""
        with self._database.read() as connection:
            row = connection.execute(_ONE, {"key": key}).first()
        if row is None:
            raise NotFound(f"there is no gang {key!r}; its job was removed or never was", key=key)
        return _attempt(row)

    def attempts(self, job_id: str) -> tuple[Attempt, ...]:
        """All of a job, oldest first."""
        with self._database.read() as connection:
            return tuple(map(_attempt, connection.execute(_OF_JOB, {"job": job_id})))

    def open_attempts(self) -> tuple[Attempt, ...]:
        """Those that hold a place."""
        with self._database.read() as connection:
            return tuple(map(_attempt, connection.execute(_OPEN)))

    def set_handle(self, key: str, handle: str, lease: Lease | None = None) -> None:
        """Keeps what the engine answered. LeaseLost, NotFound."""
        with self._database.write() as connection:
            check_lease(connection, lease)
            if connection.execute(_SET_HANDLE, {"which": key, "handle": plain(handle)}).rowcount == 0:
                check_attempt(connection, key)

    def join(
        self,
        key: str,
        node: str,
        address: str,
        host: str,
        ports: Mapping[str, Mapping[str, int]],
        pid: int | None,
        now: float,
    ) -> bool:
        """A shepherd is there; True once all nodes of the gang are. Again only renews what it announced. NotFound."""
        said = {"address": plain(address), "host": plain(host), "ports": to_json(ports), "pid": pid, "last_seen": now}
        with self._database.write() as connection:
            if not connection.execute(_HAS_NODE, {"key": key, "node": node}).scalar():
                raise NotFound(f"node {node!r} has no place in the gang {key!r}; end this shepherd", key=key, node=node)
            if self._add(connection, shepherds, {"key": key, "node": node, "joined_at": now, **said}):
                joined, nodes = connection.execute(_COUNT_JOINED, {"which": key}).one()
            else:
                connection.execute(_CAME_BACK, {"which": key, "where": node, **said})
                joined, _, nodes = connection.execute(_COUNTED, {"key": key}).one()
        return bool(joined >= nodes)

    def shepherds(self, key: str) -> tuple[Shepherd, ...]:
        """Those that have joined, by node."""
        with self._database.read() as connection:
            return tuple(map(_shepherd, connection.execute(_SHEPHERDS, {"key": key})))

    def touch(self, seen: Iterable[tuple[str, str]], now: float) -> None:
        """These (key, node) were heard of; one statement for all of them."""
        rows = [{"which": key, "where": node, "at": now} for key, node in sorted(seen)]
        if rows:
            with self._database.write() as connection:
                connection.execute(_SEEN, rows)

    def complete(self, key: str, now: float) -> bool:
        """The gang is whole: its first roster, and the directive to launch. True for the first caller only."""
        with self._database.write() as connection:
            first = connection.execute(_COMPLETE, {"which": key, "at": now}).rowcount == 1
            if first:
                write_directive(connection, key, None, "launch", {"roster": 1}, now)
            else:
                check_attempt(connection, key)
        return first

    def bump_roster(self, key: str) -> int:
        """The roster changed; its new version. NotFound."""
        with self._database.write() as connection:
            version = connection.execute(_BUMP, {"which": key}).scalar()
            if version is None:
                check_attempt(connection, key)
        return int(version or 0)

    def done(self, key: str, node: str, now: float) -> bool:
        """A node has nothing left of the gang; True once all have. Twice counts once. NotFound if it never joined."""
        with self._database.write() as connection:
            if connection.execute(_LEFT, {"which": key, "where": node, "at": now}).rowcount:
                done, nodes = connection.execute(_COUNT_DONE, {"which": key}).one()
            elif connection.execute(_HAS_JOINED, {"key": key, "node": node}).scalar():
                _, done, nodes = connection.execute(_COUNTED, {"key": key}).one()
            else:
                raise NotFound(f"node {node!r} never joined the gang {key!r}; join first", key=key, node=node)
        return bool(done >= nodes)


def _attempt(row: Any) -> Attempt:
    return Attempt(**{**row._mapping, "placement": read_placement(row.placement)})


def _shepherd(row: Any) -> Shepherd:
    return Shepherd(
        node=row.node,
        address=row.address,
        ports=from_json(row.ports),
        pid=row.pid,
        joined_at=row.joined_at,
        last_seen=row.last_seen,
        done_at=row.done_at,
        last_event=row.last_event,
        host=row.host,
    )
