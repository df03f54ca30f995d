"""A JobRecord as a row of `jobs` plus one of `specs`, and back; exact both ways."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, select

from shoal.errors import NotFound
from shoal.job.life import JobRecord
from shoal.job.reasons import Reason
from shoal.job.states import State
from shoal.store.records import JobLine
from shoal.store.tables import attempts, jobs, specs
from shoal.store.words import plain, read_spec

# What an event can change; the rest of a record is as it was submitted.
CHANGING = (
    "state", "reason", "message", "exit_code", "attempt", "retries_used", "not_before", "placed_at", "started_at",
    "stopping_at", "ended_at", "outcome", "stop_grace", "overran",
)  # fmt: skip
_KEPT = ("seq", "id", "owner", "created_at", "manifest", "in_place")
_LINE = (
    "seq", "id", "name", "state", "reason", "message", "owner", "project", "framework", "strategy", "workers",
    "attempt", "exit_code", "created_at", "started_at", "ended_at", "tags",
)  # fmt: skip

WHOLE = select(*(jobs.c[name] for name in (*_KEPT, *CHANGING)), specs.c.spec).join(specs, specs.c.job_id == jobs.c.id)
LINES = select(*(jobs.c[name] for name in _LINE), attempts.c.progress).outerjoin(
    attempts, (attempts.c.job_id == jobs.c.id) & (attempts.c.number == jobs.c.attempt)
)
_ONE = WHOLE.where(jobs.c.id == bindparam("id"))
_ONE_LOCKED = _ONE.with_for_update(of=jobs)


def load(connection: Connection, job_id: str, lock: bool = False) -> JobRecord:
    """The job, NotFound without it. `lock` holds it until the transaction ends (SQLite's writer is alone anyway)."""
    row = connection.execute(_ONE_LOCKED if lock else _ONE, {"id": job_id}).first()
    if row is None:
        raise NotFound(f"there is no job {job_id!r}; see 'shoal jobs'", job=job_id)
    return to_record(row)


def to_record(row: Any) -> JobRecord:
    return JobRecord(
        id=row.id,
        owner=row.owner,
        spec=read_spec(row.spec),
        created_at=row.created_at,
        seq=row.seq,
        state=State(row.state),
        reason=Reason.of(row.reason),
        message=row.message,
        exit_code=row.exit_code,
        attempt=row.attempt,
        retries_used=row.retries_used,
        not_before=row.not_before,
        placed_at=row.placed_at,
        started_at=row.started_at,
        stopping_at=row.stopping_at,
        ended_at=row.ended_at,
        outcome=None if row.outcome is None else Reason.of(row.outcome),
        stop_grace=row.stop_grace,
        overran=row.overran,
        manifest=row.manifest,
        in_place=row.in_place,
    )


def changing_values(record: JobRecord) -> dict[str, Any]:
    values = {name: getattr(record, name) for name in CHANGING}
    values["state"] = record.state.value
    values["reason"] = record.reason.code
    values["message"] = plain(record.message)
    values["outcome"] = None if record.outcome is None else record.outcome.code
    return values


def first_values(record: JobRecord, key: str | None) -> dict[str, Any]:
    spec = record.spec
    return {
        **changing_values(record),
        "id": record.id,
        "owner": record.owner,
        "project": spec.project,
        "name": spec.title,
        "submit_key": None if key is None else plain(key),
        "framework": spec.kind,
        "strategy": None if spec.strategy is None else plain(spec.strategy),
        "tags": " ".join(spec.tags),
        "workers": sum(role.high for role in spec.expand() if role.name == "worker"),
        "turn": -spec.weight,
        "created_at": record.created_at,
        "manifest": record.manifest,
        "in_place": record.in_place,
    }


def to_line(row: Any) -> JobLine:
    values = dict(row._mapping)
    return JobLine(**{**values, "tags": tuple(row.tags.split())})
