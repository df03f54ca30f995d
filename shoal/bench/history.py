"""A home with a past: thousands of jobs that were submitted, placed, run and ended, written through the store."""

from __future__ import annotations

from shoal.home import Home
from shoal.job.life import Finished, Gone, JobRecord, Joined
from shoal.job.nodes import Berth
from shoal.job.plan import Slot
from shoal.job.reasons import Reason
from shoal.job.spec import JobSpec
from shoal.store import Store

OWNERS = ("ada", "grace", "alan", "barbara")
PROJECTS = ("default", "vision", "speech")
TAGS = ((), ("night",), ("night", "baseline"), ("sweep-3",))
OUTCOMES = (Reason.COMPLETED, Reason.COMPLETED, Reason.COMPLETED, Reason.EXIT_CODE)
_FIRST = 1_700_000_000.0  # when the first of them was submitted


def fill(home: Home, count: int) -> None:
    home.create()
    store = Store.open(f"sqlite:///{home.database}")
    try:
        for number in range(count):
            _live(store, number)
    finally:
        store.close()


def _live(store: Store, number: int) -> None:
    at = _FIRST + 60.0 * number
    spec = _spec(number)
    record = JobRecord(id=f"past{number:06d}", owner=OWNERS[number % len(OWNERS)], spec=spec, created_at=at)
    store.submit(record, None)
    placement = tuple(Berth(Slot(role.name, 0, role.resources), "local") for role in spec.expand())
    store.place(record.id, placement, [("worker-0", "worker", 0, 0, "local", 0)], at + 1, None)
    outcome = OUTCOMES[number % len(OUTCOMES)]
    for event in (Joined(), Finished(outcome, "", 0 if outcome is Reason.COMPLETED else 1), Gone()):
        store.advance(record.id, event, at + 30)


def _spec(number: int) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": f"digits-{number % 97}",
            "script": "train.py",
            "args": ["--epochs", str(number % 20), "--rate", "0.01"],
            "project": PROJECTS[number % len(PROJECTS)],
            "tags": TAGS[number % len(TAGS)],
            "retries": 0,
        }
    )
