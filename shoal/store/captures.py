"""What is kept of a run besides its life: where the job came from, what each node ran it in, what it read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, insert, or_, select

from shoal.store.part import Part, check_attempt
from shoal.store.records import InputRow
from shoal.store.tables import attempts, inputs, origins, records
from shoal.store.words import from_json, plain, to_json

_ORIGIN = select(origins.c.origin).where(origins.c.job_id == bindparam("job"))
_DIFF = select(origins.c.diff).where(origins.c.job_id == bindparam("job"))
_RECORDS = (
    select(records).join(attempts, attempts.c.key == records.c.key).where(attempts.c.job_id == bindparam("job"))
).order_by(records.c.node)
_INPUTS = (
    select(inputs).join(attempts, attempts.c.key == inputs.c.key).where(attempts.c.job_id == bindparam("job"))
).order_by(inputs.c.name)


class Captures(Part):
    def origin(self, job_id: str) -> dict[str, Any] | None:
        """As it was submitted, without the diff; None for a job whose submitter said nothing."""
        with self._database.read() as connection:
            text = connection.execute(_ORIGIN, {"job": job_id}).scalar()
        return None if text is None else dict(from_json(text))

    def diff(self, job_id: str) -> str | None:
        """How the sent folder differed from its commit; None where that is not known."""
        with self._database.read() as connection:
            found: str | None = connection.execute(_DIFF, {"job": job_id}).scalar()
        return found

    def put_record(self, key: str, node: str, record: Mapping[str, Any]) -> None:
        """What one node says of itself and of what it runs; again replaces it. NotFound for a gang that is gone."""
        adding = self._insert(records)
        replacing = adding.on_conflict_do_update(
            index_elements=[records.c.key, records.c.node], set_={"record": adding.excluded.record}
        )
        with self._database.write() as connection:
            check_attempt(connection, key)
            connection.execute(replacing, {"key": key, "node": plain(node), "record": to_json(record)})

    def put_input(self, key: str, name: str, digest: str, files: int, size: int) -> None:
        """What an attempt was given under that name. Something else later marks it as mixed. NotFound."""
        row = {"key": key, "name": plain(name), "digest": digest, "files": files, "bytes": size}
        adding = self._insert(inputs)
        other = adding.on_conflict_do_update(
            index_elements=[inputs.c.key, inputs.c.name],
            set_={"mixed": or_(inputs.c.mixed, inputs.c.digest != adding.excluded.digest)},
        )
        with self._database.write() as connection:
            check_attempt(connection, key)
            connection.execute(other, row)

    def records(self, job_id: str) -> dict[str, dict[str, dict[str, Any]]]:
        """Key of an attempt → node → what it said, for all attempts of a job."""
        found: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        with self._database.read() as connection:
            for row in connection.execute(_RECORDS, {"job": job_id}):
                found[row.key][row.node] = dict(from_json(row.record))
        return dict(found)

    def inputs(self, job_id: str) -> dict[str, dict[str, InputRow]]:
        """Key of an attempt → name of an input → what it was, for all attempts of a job."""
        found: dict[str, dict[str, InputRow]] = defaultdict(dict)
        with self._database.read() as connection:
            for row in connection.execute(_INPUTS, {"job": job_id}):
                found[row.key][row.name] = InputRow(row.digest, row.files, row.bytes, row.mixed)
        return dict(found)


def write_origin(connection: Connection, job_id: str, origin: Mapping[str, Any], diff: str | None) -> None:
    """In the transaction that stores the job."""
    row = {"job_id": job_id, "origin": to_json(origin), "diff": None if diff is None else plain(diff)}
    connection.execute(insert(origins), row)
