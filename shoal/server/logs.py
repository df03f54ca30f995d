"""Logs and changes of a job as live streams."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from starlette.responses import StreamingResponse

from shoal.errors import BadRequest, NotFound
from shoal.job.life import JobRecord
from shoal.server.feeds import Feeds
from shoal.server.routing import Asker, Here, rank_names
from shoal.server.service import Service
from shoal.server.streams import EventStream
from shoal.storage import sieve
from shoal.storage.sieve import Finder
from shoal.storage.views import SAMPLES

LONGEST_PATTERN = 500  # characters

router = APIRouter(tags=["jobs"])
_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}


async def _feeds(request: Request) -> Feeds:
    feeds: Feeds = request.app.state.feeds
    return feeds


Live = Annotated[Feeds, Depends(_feeds)]


@router.get("/jobs/{ref}/logs", response_model=None, response_class=StreamingResponse, responses=_STREAM)
async def logs(
    ref: str,
    service: Here,
    user: Asker,
    live: Live,
    rank: Annotated[str, Query(description="worker-0,server-1; a number alone means that worker")] = "",
    since: Annotated[float | None, Query(ge=0, lt=2**33, description="seconds since the epoch")] = None,
    tail: Annotated[int | None, Query(ge=0, le=1_000_000)] = None,
    grep: Annotated[str | None, Query(max_length=LONGEST_PATTERN, description="regular expression")] = None,
    follow: bool = False,
    cursor: str | None = None,
    attempt: Annotated[int | None, Query(ge=1)] = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> EventStream:
    """The lines of all ranks in the order of time, from behind `cursor` or Last-Event-ID; last an `end` event."""
    record = await service.call(service.desk.find, user, ref)
    names = rank_names(rank)
    if names is not None:
        await service.call(_check_ranks, service, record, names)
    pattern = compile_pattern(grep)
    view = await (service.call if pattern is None else service.search)(
        service.parts.logs.follow,
        record.id,
        streams=names,
        since_us=None if since is None else int(since * 1_000_000),
        tail=tail,
        grep=pattern,
        cursor=last_event_id or cursor,
        attempt=attempt,
    )
    shared = names is None and pattern is None and attempt is None
    return EventStream(service, live.lines(record.id, view, follow, shared))


@router.get("/jobs/{ref}/watch", response_model=None, response_class=StreamingResponse, responses=_STREAM)
async def watch(ref: str, service: Here, user: Asker, live: Live) -> EventStream:
    """The job now and whenever it changed, until it has ended."""
    record = await service.call(service.desk.find, user, ref)
    return EventStream(service, live.watch(record.id))


def _check_ranks(service: Service, record: JobRecord, names: Collection[str]) -> None:
    """NotFound for a rank the job does not have; before its first attempt nobody knows yet."""
    known = [rank.name for rank in service.store.ranks(record.key)] if record.attempt else []
    for name in names:
        if known and name.removesuffix(SAMPLES) not in known:
            shown = ", ".join(known[:10]) + (f" and {len(known) - 10} more" if len(known) > 10 else "")
            raise NotFound(f"job {record.id} has no rank {name!r}; it has {shown}")


def compile_pattern(text: str | None) -> Finder | None:
    """What finds the lines that match, never in this process; BadRequest for what is no regular expression."""
    if not text:
        return None
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as wrong:
        raise BadRequest(f"grep: {text!r} is not a regular expression: {wrong}") from None
    return partial(sieve.find, text)
