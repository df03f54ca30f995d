"""The waiting line and the jobs under way: what the control loop looks at each time round."""

from __future__ import annotations

from sqlalchemy import and_, bindparam, func, literal_column, or_, select

from shoal.errors import NotFound
from shoal.job.life import JobRecord
from shoal.job.states import HOLDING
from shoal.store import jobrows
from shoal.store.part import Part
from shoal.store.tables import database_now, jobs

SHOWN_BEFORE = 20

# Written out, not bound: only so does SQLite see that the index of the queue fits.
_WAITS = jobs.c.state == literal_column("'queued'")
_ORDER = (jobs.c.turn, jobs.c.seq)
_QUEUE = (
    jobrows.WHOLE.where(_WAITS, or_(jobs.c.not_before.is_(None), jobs.c.not_before <= bindparam("now")))
    .order_by(*_ORDER)
    .limit(bindparam("limit"))
)
_ACTIVE = jobrows.WHOLE.where(jobs.c.state.in_(sorted(state.value for state in HOLDING))).order_by(jobs.c.seq)
_PLACE_IN_LINE = select(jobs.c.turn, jobs.c.seq, _WAITS.label("waits")).where(jobs.c.id == bindparam("id"))
_AHEAD = and_(
    _WAITS,
    or_(jobs.c.not_before.is_(None), jobs.c.not_before <= database_now()),
    or_(
        jobs.c.turn < bindparam("turn"),
        and_(jobs.c.turn == bindparam("turn"), jobs.c.seq < bindparam("before")),
    ),
)
_COUNT_AHEAD = select(func.count()).select_from(jobs).where(_AHEAD)
_FIRST_AHEAD = select(jobs.c.id).where(_AHEAD).order_by(*_ORDER).limit(SHOWN_BEFORE)


class Line(Part):
    def queue(self, now: float, limit: int) -> tuple[JobRecord, ...]:
        """Those that may start by now: the weightiest first, then first come."""
        with self._database.read() as connection:
            return tuple(map(jobrows.to_record, connection.execute(_QUEUE, {"now": now, "limit": limit})))

    def active(self) -> tuple[JobRecord, ...]:
        """Those that hold a place: starting, running, stopping; oldest first."""
        with self._database.read() as connection:
            return tuple(map(jobrows.to_record, connection.execute(_ACTIVE)))

    def queue_position(self, job_id: str) -> tuple[int, tuple[str, ...]]:
        """Its place in the line, from 1, and the ids at the head of the line before it; (0, ()) when it does not wait.

        Jobs that pause before a retry stand aside and are not counted.
        """
        with self._database.read() as connection:
            own = connection.execute(_PLACE_IN_LINE, {"id": job_id}).first()
            if own is None:
                raise NotFound(f"there is no job {job_id!r}; see 'shoal jobs'", job=job_id)
            if not own.waits:
                return 0, ()
            mark = {"turn": own.turn, "before": own.seq}
            count = connection.execute(_COUNT_AHEAD, mark).scalar_one()
            return count + 1, tuple(connection.execute(_FIRST_AHEAD, mark).scalars())
