"""The steps of a job's life, each one transaction: lock the job, check the lease, decide (pure), write all of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from shoal.errors import NotFound
from shoal.job.life import Event, Gone, Happening, JobRecord, Placed, advance
from shoal.job.nodes import Placement, placement_to_json
from shoal.job.states import State
from shoal.store import jobrows
from shoal.store.part import Part, check_lease, insert_rows
from shoal.store.records import EventRow, Lease
from shoal.store.tables import attempts, events, jobs, ranks
from shoal.store.webhooks import enqueue_alarm
from shoal.store.words import from_json, plain, to_json

MemberTuple = tuple[str, str, int, int, str, int]  # name, role, index, slot, node, local

_WRITE = (
    update(jobs)
    .where(jobs.c.id == bindparam("which"))
    .values({**{name: bindparam(name) for name in jobrows.CHANGING}, "version": jobs.c.version + 1})
)
_CLOSE = (
    update(attempts)
    .where(attempts.c.key == bindparam("which"), attempts.c.ended_at.is_(None))
    .values(
        ended_at=bindparam("at"),
        reason=bindparam("why"),
        message=bindparam("said"),
        exit_code=bindparam("code"),
        changes=attempts.c.changes + 1,
    )
)
_TOUCH_JOB = update(jobs).where(jobs.c.id == bindparam("which")).values(version=jobs.c.version + 1)
_EVENTS = (
    select(events.c.seq, events.c.at, events.c.kind, events.c.reason, events.c.message, events.c.data)
    .where(events.c.job_id == bindparam("id"), events.c.seq > bindparam("after"))
    .order_by(events.c.seq)
    .limit(bindparam("limit"))
)


@dataclass(frozen=True, slots=True)
class _Step:
    """A record before and after one event, and what happened in between."""

    before: JobRecord
    after: JobRecord
    happenings: tuple[Happening, ...]

    @property
    def changed(self) -> bool:
        return bool(self.happenings) or self.after != self.before


class Life(Part):
    def advance(
        self, job_id: str, event: Event, now: float, lease: Lease | None = None, attempt: int | None = None
    ) -> JobRecord:
        """What the event makes of the job, written whole: record, events, alarms and, at the end, the attempt.

        Twice is as good as once, because the life ignores what means nothing in the new state. An event that is
        about another attempt than the current one changes nothing. LeaseLost, NotFound.
        """
        with self._database.write() as connection:
            before = jobrows.load(connection, job_id, lock=True)
            check_lease(connection, lease)
            if attempt is not None and attempt != before.attempt:
                return before
            step = _Step(before, *advance(before, event, now))
            if step.changed:
                _write(connection, step, now)
                if isinstance(event, Gone):
                    _close_attempt(connection, step, now)
            return step.after

    def place(
        self, job_id: str, placement: Placement, members: Sequence[MemberTuple], now: float, lease: Lease | None = None
    ) -> JobRecord:
        """Reserves the placement: a new attempt with its ranks. A job that is no longer queued comes back as it is."""
        nodes = tuple(dict.fromkeys(berth.node for berth in placement))
        with self._database.write() as connection:
            before = jobrows.load(connection, job_id, lock=True)
            check_lease(connection, lease)
            if before.state is not State.QUEUED:
                return before
            step = _Step(before, *advance(before, Placed(nodes), now))
            _write(connection, step, now)
            key = step.after.key
            connection.execute(
                insert(attempts),
                {"key": key, "job_id": job_id, "number": step.after.attempt, "created_at": now, "message": "",
                 "placement": placement_to_json(placement), "nodes": len(nodes)},
            )  # fmt: skip
            insert_rows(connection, insert(ranks), [_rank(key, i, member) for i, member in enumerate(members)])
            return step.after

    def add_event(
        self, job_id: str, kind: str, reason_code: str, message: str, data: dict[str, Any] | None, now: float
    ) -> None:
        """A line in the job's history that changes nothing else."""
        with self._database.write() as connection:
            # Also takes the job's row, so that events of a job become visible in the order of their numbers.
            if connection.execute(_TOUCH_JOB, {"which": job_id}).rowcount == 0:
                raise NotFound(f"there is no job {job_id!r}; see 'shoal jobs'", job=job_id)
            connection.execute(insert(events), _event(job_id, kind, reason_code, message, data, now))

    def events(self, job_id: str, after: int = 0, limit: int = 100) -> tuple[EventRow, ...]:
        """The history past `after`, oldest first; the last one's seq is the next `after`."""
        with self._database.read() as connection:
            rows = connection.execute(_EVENTS, {"id": job_id, "after": after, "limit": limit}).all()
        return tuple(
            EventRow(r.seq, r.at, r.kind, r.reason, r.message, None if r.data is None else from_json(r.data))
            for r in rows
        )


def _write(connection: Connection, step: _Step, now: float) -> None:
    record = step.after
    connection.execute(_WRITE, {**jobrows.changing_values(record), "which": record.id})
    insert_rows(connection, insert(events), list(_event_rows(record.id, step.happenings, now)))
    for happening in step.happenings:
        if happening.alarm is not None:
            enqueue_alarm(connection, record, happening, now)


def _event_rows(job_id: str, happenings: Iterable[Happening], now: float) -> Iterable[dict[str, Any]]:
    for one in happenings:
        yield _event(job_id, one.kind, one.reason.code, one.message, one.data, now)


def _event(
    job_id: str, kind: str, reason: str, message: str, data: dict[str, Any] | None, now: float
) -> dict[str, Any]:
    text = None if data is None else to_json(data)
    return {"job_id": job_id, "at": now, "kind": kind, "reason": reason, "message": plain(message), "data": text}


def _close_attempt(connection: Connection, step: _Step, now: float) -> None:
    """The attempt keeps its own outcome; the job's message may by now speak of the next try."""
    before, after = step.before, step.after
    values = {
        "which": before.key,
        "at": now,
        "why": step.happenings[-1].reason.code,
        "said": plain(before.message if before.outcome is not None else after.message),
        "code": after.exit_code,
    }
    connection.execute(_CLOSE, values)


def _rank(key: str, ordinal: int, member: MemberTuple) -> dict[str, Any]:
    name, role, index, slot, node, local = member
    return {"key": key, "name": name, "ordinal": ordinal, "role": role, "number": index, "slot": slot, "node": node,
            "local": local, "state": "waiting"}  # fmt: skip
