"""Asking ranks where they stand: their shepherds have it written to their logs, behind a mark that tells one asking
from another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shoal._lib.ids import short_id
from shoal.control.gangs import Gangs
from shoal.control.parts import Parts
from shoal.errors import Conflict, NotFound
from shoal.job.life import JobRecord


def ask_stacks(parts: Parts, gangs: Gangs, record: JobRecord, names: Sequence[str] | None) -> dict[str, Any]:
    """Who was asked, and the mark their answers end with. NotFound for a rank that the job does not have, Conflict for
    one that does not run."""
    ranks = {rank.name: rank.state for rank in parts.store.ranks(record.key)} if record.attempt else {}
    running = [name for name, state in ranks.items() if state == "running"]
    for name in names or ():
        if ranks and name not in ranks:
            raise NotFound(f"job {record.id} has no rank {name!r}; it has {_some(list(ranks))}")
    idle = [name for name in names or () if name not in running]
    if idle or not running:
        who = f"rank {idle[0]} of job" if idle else "job"
        raise Conflict(
            f"{who} {record.id} does not run (the job is {record.state.value}), so it stands nowhere; "
            + (f"these run: {_some(running)}" if running else f"see 'shoal why {record.id}'")
        )
    mark = short_id()
    asked = list(names or running)
    gangs.direct(record.key, "stacks", {"ranks": asked, "mark": mark})
    return {"ranks": asked, "mark": mark}


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
