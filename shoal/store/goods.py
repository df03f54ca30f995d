"""Manifests of uploaded folders, and the files of users' pools. Content lies elsewhere; here is what it is called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, TextClause, and_, bindparam, delete, or_, select, text, true

from shoal.errors import BadSpec, Conflict, NotFound
from shoal.store.paging import Page, check_limit, cut, decode_cursor
from shoal.store.part import Part
from shoal.store.tables import manifests, pool_files
from shoal.store.words import from_json, to_json

_MANIFEST = select(manifests.c.content).where(
    manifests.c.owner == bindparam("owner"), manifests.c.digest == bindparam("digest")
)
# Many names in one question: a list in JSON has no limit of its own, bound parameters have.
_NAMES = {
    "sqlite": "json_each(:names) AS asked",
    "postgresql": "jsonb_array_elements_text(CAST(:names AS jsonb)) AS asked(value)",
}


class Goods(Part):
    def put_manifest(self, owner: str, digest: str, content: str) -> str:
        """Its id, which is the digest. The same twice is one."""
        with self._database.write(safe=True) as connection:
            self._add(connection, manifests, {"owner": owner, "digest": digest, "content": content})
        return digest

    def manifest(self, owner: str, manifest_id: str) -> str:
        """The JSON that was put; NotFound for one that is not this owner's."""
        with self._database.read() as connection:
            content = connection.execute(_MANIFEST, {"owner": owner, "digest": manifest_id}).scalar()
        if content is None:
            raise NotFound(f"there is no manifest {manifest_id!r} of yours; upload the folder again", id=manifest_id)
        return str(content)

    def put_files(self, pool_owner: str, entries: Iterable[Mapping[str, Any]], now: float) -> None:
        """Adds or replaces files, all or none. Conflict where a file would lie under another file."""
        rows = {
            entry["path"]: {"owner": pool_owner, "path": entry["path"], "entry": to_json(entry), "changed_at": now}
            for entry in entries
        }
        if not rows:
            return
        adding = self._insert(pool_files)
        replacing = adding.on_conflict_do_update(
            index_elements=[pool_files.c.owner, pool_files.c.path],
            set_={"entry": adding.excluded.entry, "changed_at": adding.excluded.changed_at},
        )
        with self._database.write(safe=True) as connection:
            self._refuse_nesting(connection, pool_owner, rows.keys())
            connection.execute(replacing, [rows[path] for path in sorted(rows)])

    def files(
        self, pool_owner: str, prefix: str = "", limit: int = 100, cursor: str | None = None
    ) -> Page[dict[str, Any]]:
        """The entries at or below `prefix`, by path, as they were put. A prefix is whole parts of a path."""
        check_limit(limit)
        query = select(pool_files.c.path, pool_files.c.entry).where(pool_files.c.owner == pool_owner, _under(prefix))
        if cursor is not None:
            query = query.where(pool_files.c.path > decode_cursor(cursor, str))
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(pool_files.c.path).limit(limit + 1)).all()
        return cut(rows, limit, lambda row: str(row.path), lambda row: dict(from_json(row.entry)))

    def remove_files(self, pool_owner: str, prefix: str) -> int:
        """How many files at or below `prefix` there were; an empty prefix is the whole pool."""
        with self._database.write(safe=True) as connection:
            found = connection.execute(delete(pool_files).where(pool_files.c.owner == pool_owner, _under(prefix)))
            return found.rowcount

    def _refuse_nesting(self, connection: Connection, owner: str, paths: Iterable[str]) -> None:
        names = set(paths)
        above = {parent for path in names for parent in _parents(path)}
        both = sorted(names & above)
        if both:
            raise BadSpec(f"{both[0]!r} cannot be a file and a folder at once; leave one of them out")
        for condition, asked in (("f.path = asked.value", above), (_BELOW, names)):
            values = {"owner": owner, "names": to_json(sorted(asked))}
            clash = connection.execute(self._any_file(condition), values).scalar()
            if clash is not None:
                raise Conflict(
                    f"{clash!r} is a file in the pool and would lie above or below a new one; remove it first"
                )

    def _any_file(self, condition: str) -> TextClause:
        names = _NAMES[self._database.dialect]
        return text(f"SELECT f.path FROM {names} JOIN pool_files f ON f.owner = :owner AND {condition} LIMIT 1")


_BELOW = "f.path > asked.value || '/' AND f.path < asked.value || '0'"  # '0' follows '/'


def _parents(path: str) -> Iterator[str]:
    parts = path.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts)))


def _under(prefix: str) -> ColumnElement[bool]:
    inside = prefix.strip("/")
    if not inside:
        return true()
    path = pool_files.c.path
    return or_(path == inside, and_(path > inside + "/", path < inside + "0"))
