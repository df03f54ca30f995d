"""Jobs as people see them: submit, find, list, count, remove."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import BigInteger, bindparam, cast, delete, func, insert, select

from shoal.errors import Conflict, NotFound
from shoal.job.life import JobRecord
from shoal.job.states import State
from shoal.store import jobrows
from shoal.store.captures import write_origin
from shoal.store.paging import Page, check_limit, cut, decode_cursor
from shoal.store.part import Part, insert_rows
from shoal.store.records import JobLine
from shoal.store.tables import attempts, events, jobs, ranks, shepherds, specs, tags
from shoal.store.words import plain

SHORTEST_PREFIX = 4
_ID_PREFIX = re.compile(rf"[0-9a-z]{{{SHORTEST_PREFIX},}}")
_SHOWN_CANDIDATES = 6

_BY_KEY = jobrows.WHOLE.where(jobs.c.owner == bindparam("owner"), jobs.c.submit_key == bindparam("key"))
_COUNTS = select(jobs.c.state, func.count().label("number")).group_by(jobs.c.state)
_RANK_CHANGES = (
    select(func.coalesce(func.sum(attempts.c.changes), 0)).where(attempts.c.job_id == jobs.c.id).scalar_subquery()
)
_LAST_CHANGE = select(jobs.c.version + cast(_RANK_CHANGES, BigInteger)).where(jobs.c.id == bindparam("id"))
_KEYS = select(attempts.c.key).where(attempts.c.job_id == bindparam("id"))


class Jobs(Part):
    def submit(
        self,
        record: JobRecord,
        key: str | None = None,
        origin: Mapping[str, Any] | None = None,
        diff: str | None = None,
    ) -> tuple[JobRecord, bool]:
        """Stores the job with its first event. The owner's same key again gives the first job, and False."""
        adding = self._insert(jobs).on_conflict_do_nothing().returning(jobs.c.seq)
        with self._database.write(safe=True) as connection:
            seq = connection.execute(adding, jobrows.first_values(record, key)).scalar()
            if seq is None:
                return self._known(connection, record, key), False
            connection.execute(insert(specs), {"job_id": record.id, "spec": record.spec.model_dump_json()})
            if origin is not None:
                write_origin(connection, record.id, origin, diff)
            insert_rows(connection, insert(tags), [{"tag": tag, "seq": seq} for tag in record.spec.tags])
            connection.execute(
                insert(events),
                {"job_id": record.id, "at": record.created_at, "kind": "queued", "reason": record.reason.code,
                 "message": f"submitted by {record.owner}", "data": None},
            )  # fmt: skip
        return replace(record, seq=seq), True

    def _known(self, connection: Any, record: JobRecord, key: str | None) -> JobRecord:
        row = None
        if key is not None:
            row = connection.execute(_BY_KEY, {"owner": record.owner, "key": plain(key)}).first()
        if row is None:
            raise Conflict(f"there is already a job {record.id!r}; submit again, and it gets another id", job=record.id)
        return jobrows.to_record(row)

    def job(self, job_id: str) -> JobRecord:
        """NotFound without it."""
        with self._database.read() as connection:
            return jobrows.load(connection, job_id)

    def find(self, ref: str, owner: str | None = None) -> JobRecord:
        """The job with that id, with that beginning of an id, or the newest of that name. Conflict when several fit."""
        mine = () if owner is None else (jobs.c.owner == owner,)
        with self._database.read() as connection:
            exact = connection.execute(jobrows.WHOLE.where(jobs.c.id == ref, *mine)).first()
            if exact is not None:
                return jobrows.to_record(exact)
            found = {}
            if _ID_PREFIX.fullmatch(ref):
                after = ref[:-1] + chr(ord(ref[-1]) + 1)
                begins = jobrows.WHOLE.where(jobs.c.id >= ref, jobs.c.id < after, *mine).limit(_SHOWN_CANDIDATES)
                found = {row.id: row for row in connection.execute(begins)}
            named = jobrows.WHOLE.where(jobs.c.name == ref, *mine).order_by(jobs.c.seq.desc()).limit(1)
            newest = connection.execute(named).first()
        if newest is not None:
            found[newest.id] = newest
        if not found:
            raise NotFound(
                f"there is no job {ref!r} for you; give an id, its first {SHORTEST_PREFIX} characters or more, "
                "or a name: see 'shoal jobs'",
                job=ref,
            )
        if len(found) > 1:
            listed = ", ".join(sorted(found))
            raise Conflict(f"{ref!r} could be any of {listed}; write more of the id", job=ref, candidates=sorted(found))
        return jobrows.to_record(next(iter(found.values())))

    def list_jobs(
        self,
        owner: str | None = None,
        states: Iterable[str] = (),
        project: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        framework: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[JobLine]:
        """Newest first. `name` is any part of it, in either case. Reads no specification."""
        check_limit(limit)
        query = jobrows.LINES.order_by(jobs.c.seq.desc()).limit(limit + 1)
        for column, value in ((jobs.c.owner, owner), (jobs.c.project, project), (jobs.c.framework, framework)):
            if value is not None:
                query = query.where(column == value)
        chosen = [str(state) for state in states]
        if chosen:
            query = query.where(jobs.c.state == chosen[0] if len(chosen) == 1 else jobs.c.state.in_(chosen))
        if name is not None:
            query = query.where(jobs.c.name.icontains(name, autoescape=True))
        if tag is not None:
            query = query.where(jobs.c.seq.in_(select(tags.c.seq).where(tags.c.tag == tag)))
        if cursor is not None:
            query = query.where(jobs.c.seq < decode_cursor(cursor, int))
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return cut(rows, limit, lambda row: int(row.seq), jobrows.to_line)

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state, also those in which none is."""
        with self._database.read() as connection:
            found = {row.state: row.number for row in connection.execute(_COUNTS)}
        return {state.value: found.get(state.value, 0) for state in State}

    def last_change(self, job_id: str) -> int:
        """A number that grows with every change of the job, its ranks and their progress."""
        with self._database.read() as connection:
            number = connection.execute(_LAST_CHANGE, {"id": job_id}).scalar()
        if number is None:
            raise NotFound(f"there is no job {job_id!r}; see 'shoal jobs'", job=job_id)
        return int(number)

    def delete_job(self, job_id: str) -> None:
        """Removes an ended job with its events, attempts, ranks, shepherds and directives."""
        with self._database.write() as connection:
            record = jobrows.load(connection, job_id, lock=True)
            if not record.state.ended:
                raise Conflict(f"job {job_id} is {record.state}; stop it first with 'shoal stop {job_id}'", job=job_id)
            for table in (shepherds, ranks):  # in lock order; the rest goes with the job
                connection.execute(delete(table).where(table.c.key.in_(_KEYS)), {"id": job_id})
            connection.execute(delete(jobs).where(jobs.c.id == job_id))
