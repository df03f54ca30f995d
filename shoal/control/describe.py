"""A job as every door shows it: plain data, one shape, with what to do next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from shoal.job.life import JobRecord
from shoal.job.record import put_together
from shoal.job.states import State
from shoal.store import InputRow, RankRow, Store


def describe_whole(store: Store, record: JobRecord) -> dict[str, Any]:
    """The job with its origin, and with what each attempt ran in and read: more than a watcher wants at each step."""
    job = describe_job(store, record)
    nodes, inputs = store.records(record.id), store.inputs(record.id)
    for attempt in job["attempts"]:
        given = {name: _input(record, name, row) for name, row in inputs.get(attempt["key"], {}).items()}
        attempt["record"] = put_together(nodes.get(attempt["key"], {}), given)
    return {**job, "origin": store.origin(record.id)}


def _input(record: JobRecord, name: str, row: InputRow) -> dict[str, Any]:
    told = {"address": record.spec.brought.get(name), **asdict(row)}
    return told if row.mixed else {key: value for key, value in told.items() if key != "mixed"}


def describe_job(store: Store, record: JobRecord) -> dict[str, Any]:
    """The job: specification, life, ranks of the current attempt, all attempts."""
    ranks = store.ranks(record.key) if record.attempt else ()
    return {
        **describe_record(record),
        "message": record.message or waits_for(record, ranks),
        "spec": record.spec.model_dump(mode="json", exclude_defaults=True),
        "manifest": record.manifest,
        "in_place": record.in_place,
        "ranks": [describe_rank(rank) for rank in ranks],
        "attempts": [_attempt(attempt) for attempt in store.attempts(record.id)],
        "progress": overall([rank.progress for rank in ranks]),
    }


def describe_record(record: JobRecord) -> dict[str, Any]:
    spec = record.spec
    return {
        "id": record.id,
        "name": spec.title,
        "state": record.state.value,
        "reason": record.reason.code,
        "message": record.message,
        "advice": record.reason.advice,
        "owner": record.owner,
        "project": spec.project,
        "framework": spec.kind,
        "strategy": spec.strategy,
        "workers": sum(role.high for role in spec.expand() if role.name == "worker"),
        "tags": list(spec.tags),
        "attempt": record.attempt,
        "retries_used": record.retries_used,
        "exit_code": record.exit_code,
        "overran": record.overran,
        "created_at": record.created_at,
        "not_before": record.not_before,
        "placed_at": record.placed_at,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
    }


def waits_for(record: JobRecord, ranks: Iterable[RankRow]) -> str:
    """What ranks of a running job wait for before they start, such as an environment that is being built."""
    if record.state is not State.RUNNING:
        return ""
    return "; ".join(dict.fromkeys(rank.message for rank in ranks if rank.state == "waiting" and rank.message))


def describe_rank(rank: RankRow) -> dict[str, Any]:
    shown = ("name", "role", "node", "state", "pid", "exit_code", "signal", "oom", "incarnation", "message",
             "progress", "started_at", "ended_at")  # fmt: skip
    whole = asdict(rank)
    return {name: whole[name] for name in shown}


def overall(progress: list[dict[str, Any]]) -> float | None:
    """How far the job is: the slowest rank that says so."""
    fractions = [float(one["fraction"]) for one in progress if one.get("fraction") is not None]
    return min(fractions) if fractions else None


def _attempt(attempt: Any) -> dict[str, Any]:
    shown = ("key", "number", "created_at", "complete_at", "ended_at", "reason", "message", "exit_code")
    return {
        **{name: getattr(attempt, name) for name in shown},
        "nodes": sorted({berth.node for berth in attempt.placement}),
    }
