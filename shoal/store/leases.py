"""Leases: who may act. They run by the database's clock, the only one that all servers share."""

from __future__ import annotations

from sqlalchemy import bindparam, case, or_, select, update

from shoal.store.part import Part
from shoal.store.records import Lease
from shoal.store.tables import database_now, leases

_RELEASE = (
    update(leases)
    .where(leases.c.name == bindparam("which"), leases.c.token == bindparam("mark"))
    .values(until=0.0)  # the row stays: the next holder's token must be larger
)
_NOW = select(database_now())


class Leases(Part):
    def lease(self, name: str, holder: str, seconds: float) -> Lease | None:
        """Takes the lease, or renews it when it is ours; None while it is another's. `holder` is unique to a process.

        A renewed lease keeps its token; one that had run out gets a new one, and work under the old token is refused.
        """
        adding = self._insert(leases)
        ours = leases.c.holder == adding.excluded.holder
        runs = leases.c.until > database_now()
        taking = adding.on_conflict_do_update(
            index_elements=[leases.c.name],
            set_={
                "token": case((runs & ours, leases.c.token), else_=leases.c.token + 1),
                "holder": adding.excluded.holder,
                "until": database_now() + bindparam("seconds"),
            },
            where=or_(ours, ~runs),
        ).values(
            name=bindparam("name"), holder=bindparam("holder"), token=1, until=database_now() + bindparam("seconds")
        )
        with self._database.write() as connection:
            row = connection.execute(
                taking.returning(leases.c.token, leases.c.until), {"name": name, "holder": holder, "seconds": seconds}
            ).first()
        return None if row is None else Lease(name, holder, row.token, row.until)

    def release(self, lease: Lease) -> None:
        """Gives it back before its time; one that was lost meanwhile is left to its new holder."""
        with self._database.write() as connection:
            connection.execute(_RELEASE, {"which": lease.name, "mark": lease.token})

    def now(self) -> float:
        """The database's clock, in seconds since the epoch."""
        with self._database.read() as connection:
            return float(connection.execute(_NOW).scalar_one())
