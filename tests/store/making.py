"""Jobs, placements and gangs for the tests of the store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from shoal._lib.ids import short_id
from shoal.job.life import Finished, Gone, JobRecord, Joined
from shoal.job.nodes import Berth, Placement
from shoal.job.plan import Slot
from shoal.job.reasons import Reason
from shoal.job.spec import parse
from shoal.store import Store

NOW = 1_700_000_000.0
Result = TypeVar("Result")


def record(owner: str = "ann", at: float = NOW, **keys: Any) -> JobRecord:
    spec = parse({"command": ["true"], **keys})
    return JobRecord(id=short_id(), owner=owner, spec=spec, created_at=at)


def submit(store: Store, owner: str = "ann", **keys: Any) -> JobRecord:
    return store.submit(record(owner, **keys), None)[0]


def seats(
    job: JobRecord, nodes: tuple[str, ...] = ("n1",)
) -> tuple[Placement, list[tuple[str, str, int, int, str, int]]]:
    """One worker on each node."""
    placement = tuple(Berth(Slot("worker", i, job.spec.resources), node) for i, node in enumerate(nodes))
    members = [(f"worker-{i}", "worker", i, i, node, 0) for i, node in enumerate(nodes)]
    return placement, members


def place(store: Store, job: JobRecord, nodes: tuple[str, ...] = ("n1",), now: float = NOW) -> JobRecord:
    placement, members = seats(job, nodes)
    return store.place(job.id, placement, members, now, None)


def join(store: Store, key: str, node: str = "n1", now: float = NOW, port: int = 4000) -> bool:
    return store.join(key, node, "10.0.0.1", "host", {"worker-0": {"master": port}}, 77, now)


def running(store: Store, nodes: tuple[str, ...] = ("n1",), **keys: Any) -> JobRecord:
    job = place(store, submit(store, **keys), nodes)
    for node in nodes:
        join(store, job.key, node)
    store.complete(job.key, NOW)
    return store.advance(job.id, Joined(), NOW)


def ended(store: Store, reason: Reason = Reason.COMPLETED, **keys: Any) -> JobRecord:
    job = running(store, **keys)
    store.advance(job.id, Finished(reason, "how it went", 0 if reason is Reason.COMPLETED else 3), NOW + 1)
    return store.advance(job.id, Gone(), NOW + 2)


def at_once(*calls: Callable[[], Result]) -> list[Result | BaseException]:
    """All calls, each in a thread of its own, let go together; results or exceptions in their order."""
    gate = threading.Barrier(len(calls))
    results: list[Any] = [None] * len(calls)

    def run(number: int, call: Callable[[], Result]) -> None:
        gate.wait()
        try:
            results[number] = call()
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
