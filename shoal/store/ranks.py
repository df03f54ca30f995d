"""The processes of a gang, as their shepherds tell: starts, ends, progress. Told twice is told once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import and_, bindparam, func, select, update

from shoal.errors import BadSpec, NotFound
from shoal.store.part import Part
from shoal.store.records import RankRow
from shoal.store.tables import attempts, ranks, shepherds
from shoal.store.words import from_json, plain, to_json

STATES = ("waiting", "running", "ended", "gone")
EVENTS = ("preparing", "started", "ended", "failed_start")

# What is known of one incarnation before it starts.
_FRESH: dict[str, Any] = {
    "pid": None, "exit_code": None, "signal": None, "oom": False, "failed_start": False, "message": "", "tail": "",
    "started_at": None, "ended_at": None,
}  # fmt: skip
_TOLD = ("state", "incarnation", *_FRESH)

_RANKS = select(ranks).where(ranks.c.key == bindparam("key")).order_by(ranks.c.ordinal)
_OF_NODE = (
    select(shepherds.c.last_event, ranks.c.name, *(ranks.c[name] for name in _TOLD))
    .outerjoin(ranks, and_(ranks.c.key == shepherds.c.key, ranks.c.node == shepherds.c.node))
    .where(shepherds.c.key == bindparam("key"), shepherds.c.node == bindparam("node"))
    .with_for_update(of=shepherds)
)
_this_rank = update(ranks).where(ranks.c.key == bindparam("which"), ranks.c.name == bindparam("who"))
_TELL = _this_rank.values({name: bindparam(name) for name in _TOLD})
_HEARD = (
    update(shepherds)
    .where(shepherds.c.key == bindparam("which"), shepherds.c.node == bindparam("where"))
    .values(last_event=bindparam("number"), last_seen=bindparam("at"))
)
_CHANGED = update(attempts).where(attempts.c.key == bindparam("which")).values(changes=attempts.c.changes + 1)
_PROGRESS = _this_rank.values(progress=bindparam("facts"), fraction=bindparam("share"), progress_at=bindparam("at"))
_SLOWEST = select(func.min(ranks.c.fraction)).where(ranks.c.key == bindparam("which")).scalar_subquery()
_ADVANCED = _CHANGED.values(progress=_SLOWEST)


class Ranks(Part):
    def ranks(self, key: str) -> tuple[RankRow, ...]:
        """All processes of the gang, in the order they were placed."""
        with self._database.read() as connection:
            return tuple(map(_rank, connection.execute(_RANKS, {"key": key})))

    def rank_events(self, key: str, node: str, events: Iterable[Mapping[str, Any]], now: float) -> bool:
        """Takes what a shepherd tells, in the order of its numbers; True when a rank changed.

        Numbers that were told before, and incarnations that are over, are ignored. BadSpec for an event that makes
        no sense, NotFound for a shepherd that never joined; then nothing is taken.
        """
        with self._database.write() as connection:
            rows = connection.execute(_OF_NODE, {"key": key, "node": node}).all()
            if not rows:
                raise NotFound(f"node {node!r} never joined the gang {key!r}; join first", key=key, node=node)
            fresh = sorted((e for e in events if int(e["n"]) > rows[0].last_event), key=lambda e: int(e["n"]))
            if not fresh:
                return False
            changed = _retell({row.name: dict(row._mapping) for row in rows}, fresh, now)
            if changed:
                connection.execute(_TELL, [{"which": key, **values} for values in changed])
            connection.execute(_HEARD, {"which": key, "where": node, "number": int(fresh[-1]["n"]), "at": now})
            if changed:
                connection.execute(_CHANGED, {"which": key})
        return bool(changed)

    def set_rank(self, key: str, name: str, *, state: str | None = None, incarnation: int | None = None) -> None:
        """The server's own word on a rank: `waiting` forgets its end and its progress, `gone` keeps them. NotFound."""
        values: dict[str, Any] = {}
        if state is not None:
            values["state"] = _known_state(state)
        if incarnation is not None:
            values["incarnation"] = incarnation
        if state == "waiting":
            values |= {**_FRESH, "progress": "{}", "fraction": None, "progress_at": None}
        with self._database.write() as connection:
            if connection.execute(_this_rank.values(values), {"which": key, "who": name}).rowcount == 0:
                raise NotFound(f"the gang {key!r} has no rank {name!r}", key=key, rank=name)
            connection.execute(_ADVANCED if state == "waiting" else _CHANGED, {"which": key})

    def set_progress(self, key: str, progress: Mapping[str, Mapping[str, Any]], now: float) -> None:
        """The newest progress of some ranks; `fraction` in it counts for the job. Names of no rank are ignored."""
        rows = [
            {"which": key, "who": name, "facts": to_json(facts), "share": _fraction(facts), "at": now}
            for name, facts in sorted(progress.items())
        ]
        if rows:
            with self._database.write() as connection:
                connection.execute(_PROGRESS, rows)
                connection.execute(_ADVANCED, {"which": key})


def _retell(known: dict[str, dict[str, Any]], events: Iterable[Mapping[str, Any]], now: float) -> list[dict[str, Any]]:
    """The ranks that the events change, as they are after the last of them."""
    changed: dict[str, dict[str, Any]] = {}
    for event in events:
        name = str(event.get("member"))
        if name not in known or event.get("event") not in EVENTS:
            raise BadSpec(
                f"event {event.get('n')}: {event.get('event')!r} of {name!r} makes no sense here; "
                f"events are {', '.join(EVENTS)}, ranks here are {', '.join(filter(None, known)) or 'none'}"
            )
        before = {column: known[name][column] for column in _TOLD}
        after = _next(before, event, now)
        if after != before:
            known[name] = after
            changed[name] = {"who": name, **after}
    return [changed[name] for name in sorted(changed)]


def _next(rank: dict[str, Any], event: Mapping[str, Any], now: float) -> dict[str, Any]:
    """One rank after one event. What is over stays over: a late word on an old incarnation changes nothing."""
    incarnation = int(event.get("incarnation") or 0)
    if rank["state"] == "gone" or incarnation < rank["incarnation"]:
        return rank
    if incarnation > rank["incarnation"]:
        rank = {**rank, **_FRESH, "state": "waiting", "incarnation": incarnation}
    at = float(event.get("at") or now)
    if event["event"] in ("preparing", "started") and rank["state"] != "waiting":
        return rank
    if event["event"] == "preparing":
        return {**rank, "message": plain(str(event.get("message") or ""))}
    if event["event"] == "started":
        return {**rank, "state": "running", "pid": event.get("pid"), "started_at": at, "message": ""}
    if rank["state"] == "ended":
        return rank
    return {
        **rank,
        "state": "ended",
        "pid": event.get("pid", rank["pid"]),
        "exit_code": event.get("exit_code"),
        "signal": event.get("signal"),
        "oom": bool(event.get("oom")),
        "failed_start": event["event"] == "failed_start",
        "message": plain(str(event.get("message") or "")),
        "tail": plain(str(event.get("tail") or "")),
        "ended_at": at,
    }


def _known_state(state: str) -> str:
    if state not in STATES:
        raise BadSpec(f"a rank cannot be {state!r}; it is one of {', '.join(STATES)}")
    return state


def _fraction(facts: Mapping[str, Any]) -> float | None:
    share = facts.get("fraction")
    sound = isinstance(share, (int, float)) and not isinstance(share, bool) and math.isfinite(share)
    return float(share) if sound and share is not None else None


def _rank(row: Any) -> RankRow:
    return RankRow(
        name=row.name,
        role=row.role,
        index=row.number,
        slot=row.slot,
        node=row.node,
        local=row.local,
        progress=from_json(row.progress),
        progress_at=row.progress_at,
        **{name: getattr(row, name) for name in _TOLD},
    )
