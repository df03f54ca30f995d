"""Jobs over HTTP: submit, list, show, stop, remove, their history, files and samples."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from fastapi import APIRouter, Query, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from shoal.control.people import User
from shoal.control.stacks import ask_stacks
from shoal.job.life import JobRecord
from shoal.job.spec import JobSpec
from shoal.job.states import State
from shoal.server import shapes
from shoal.server.routing import Asker, Here, as_json, rank_names
from shoal.server.service import Service
from shoal.server.transfers import PIECE, Content, download, drawn
from shoal.storage.folders import list_folder, open_inside
from shoal.storage.manifest import Entry
from shoal.storage.views import SAMPLES

router = APIRouter(tags=["jobs"])


@router.post("/jobs", status_code=201, response_model=shapes.JobShape, responses={200: {"model": shapes.JobShape}})
async def submit(body: shapes.Submission, service: Here, user: Asker) -> Response:
    """Stores a job as queued. 200 when the key was seen before: then it is that job, unchanged."""
    raw = body.spec if body.key is None else {**body.spec, "key": body.key}
    shown, created = await service.call(_submit, service, user, raw, body)
    return as_json(shown, 201 if created else 200)


def _submit(service: Service, user: User, raw: dict[str, Any], body: shapes.Submission) -> tuple[dict[str, Any], bool]:
    record, created = service.desk.submit(user, raw, body.manifest, body.in_place, body.origin)
    return service.desk.show(user, record.id) if record.owner == user.name or user.admin else {}, created


@router.post("/plan")
async def plan(body: shapes.PlanRequest, service: Here, user: Asker) -> Response:
    """What would be started, without starting it."""
    return as_json(await service.call(service.desk.plan, user, body.spec))


@router.get("/schema")
async def schema(user: Asker) -> Response:
    """The job file as JSON schema, with every bound and its reason."""
    return as_json(JobSpec.model_json_schema())


@router.get("/jobs", response_model=shapes.JobPage)
async def list_jobs(
    service: Here,
    user: Asker,
    state: Annotated[str, Query(description="one or several, with commas between")] = "",
    owner: str | None = None,
    project: str | None = None,
    name: Annotated[str | None, Query(description="part of the name")] = None,
    tag: str | None = None,
    framework: str | None = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: str | None = None,
) -> Response:
    """The newest first. A user sees his own, an administrator all."""
    states = tuple(_state(word) for word in state.split(",") if word)
    if not user.admin and owner not in (None, user.name):
        return as_json({"jobs": [], "next": None})
    page = await service.call(
        service.store.list_jobs,
        owner=owner if user.admin else user.name,
        states=states,
        project=project,
        name=name,
        tag=tag,
        framework=framework,
        limit=limit,
        cursor=cursor,
    )
    return as_json({"jobs": page.items, "next": page.next})


def _state(word: str) -> State:
    from shoal.catalogue import nearest
    from shoal.errors import UnknownName

    try:
        return State(word)
    except ValueError:
        known = [state.value for state in State]
        raise UnknownName("state", word, known, nearest(word, known)) from None


@router.get("/jobs/{ref}", response_model=shapes.JobShape)
async def show(ref: str, service: Here, user: Asker) -> Response:
    """By id, by the beginning of one, or the newest of that name; with its origin and the records of its attempts."""
    return as_json(await service.call(service.desk.show_whole, user, ref))


@router.get("/jobs/{ref}/diff", response_class=PlainTextResponse)
async def diff(ref: str, service: Here, user: Asker) -> Response:
    """How the job's folder differed from its git commit when it was sent."""
    return PlainTextResponse(await service.call(service.desk.diff, user, ref))


@router.get("/jobs/{ref}/code", response_model=shapes.CodeList)
async def list_code(ref: str, service: Here, user: Asker) -> Response:
    """The files that were uploaded with the job, whatever it has made of them since."""
    _, manifest = await service.call(service.desk.code, user, ref)
    return as_json({"files": [_uploaded(entry) for entry in manifest.entries]})


def _uploaded(entry: Entry) -> dict[str, Any]:
    return {"path": entry.path, "size": entry.size, "mode": entry.mode, "digest": entry.digest(), "link": entry.link}


@router.get("/jobs/{ref}/code/file", response_class=StreamingResponse)
async def get_code(ref: str, path: str, request: Request, service: Here, user: Asker) -> Response:
    """One file as it was uploaded; Range is served."""
    record, manifest = await service.call(service.desk.code, user, ref)
    entry = manifest.find(path)
    opener = partial(service.parts.chunks.open, record.owner)
    return download(service, request, Content(path, entry.size, entry.digest()[:32], partial(entry.read, opener)))


@router.get("/jobs/{ref}/why")
async def why(ref: str, service: Here, user: Asker) -> Response:
    """What a job waits for, or why it ended as it did."""
    return as_json(await service.call(service.desk.why, user, ref))


@router.get("/jobs/{ref}/events", response_model=shapes.EventPage)
async def events(
    ref: str,
    service: Here,
    user: Asker,
    after: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """The job's history, oldest first."""
    return as_json(await service.call(_events, service, user, ref, after, limit))


def _events(service: Service, user: User, ref: str, after: int, limit: int) -> dict[str, Any]:
    record = service.desk.find(user, ref)
    rows = service.store.events(record.id, after=after, limit=limit)
    return {"events": rows, "next": rows[-1].seq if len(rows) == limit else None}


@router.post("/jobs/{ref}/stop", response_model=shapes.JobShape)
async def stop(ref: str, service: Here, user: Asker, body: shapes.StopRequest | None = None) -> Response:
    """Asks a job to stop; one that has ended stays as it is."""
    asked = body or shapes.StopRequest()
    grace = 0.0 if asked.force else asked.grace
    record = await service.call(service.desk.stop, user, ref, grace, asked.message)
    return as_json(await service.call(service.desk.show, user, record.id))


@router.post("/jobs/{ref}/stacks", status_code=202, response_model=shapes.StacksAsked)
async def stacks(ref: str, service: Here, user: Asker, body: shapes.StacksRequest | None = None) -> Response:
    """Has ranks write to their logs where their threads stand; answers at once with the mark to look for."""
    record = await service.call(service.desk.find, user, ref)
    names = rank_names(body.ranks if body else "")
    return as_json(await service.call(ask_stacks, service.parts, service.gangs, record, names), 202)


@router.delete("/jobs/{ref}", status_code=204)
async def delete(ref: str, service: Here, user: Asker) -> Response:
    """Removes an ended job with its logs and files."""
    await service.call(service.desk.delete, user, ref)
    return Response(status_code=204)


@router.get("/jobs/{ref}/files", response_model=shapes.FilePage)
async def list_files(ref: str, service: Here, user: Asker, path: str = "", cursor: str | None = None) -> Response:
    """One folder of what the job wrote."""
    record = await service.call(service.desk.find, user, ref)
    page = await service.call(list_folder, _folder(service, record), path, cursor)
    return as_json({"files": page.items, "next": page.next})


@router.get("/jobs/{ref}/file", response_class=StreamingResponse)
async def get_file(ref: str, path: str, request: Request, service: Here, user: Asker) -> Response:
    """One file of what the job wrote; Range is served."""
    record = await service.call(service.desk.find, user, ref)
    return download(service, request, await service.call(_open, _folder(service, record), path))


def _folder(service: Service, record: JobRecord) -> Path:
    return Path(record.in_place) if record.in_place else service.parts.home.work / record.id


def _open(folder: Path, path: str) -> Content:
    file = open_inside(folder, path)
    found = os.fstat(file.fileno())
    version = f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"
    return Content(path, found.st_size, version, partial(_read, file))


def _read(file: BinaryIO, start: int, stop: int) -> Iterator[bytes]:
    """Exactly the bytes that were promised: a file that shrinks meanwhile breaks the answer off, as it must."""
    with file:
        file.seek(start)
        while start < stop and (piece := file.read(min(PIECE, stop - start))):
            start += len(piece)
            yield piece


@router.get("/jobs/{ref}/samples", response_class=StreamingResponse)
async def samples(ref: str, service: Here, user: Asker, rank: str = "") -> Response:
    """What was measured of each rank (CPU, memory, GPU, network, disk, progress), one JSON object a line."""
    record = await service.call(service.desk.find, user, ref)
    pieces = _sample_lines(service, record.id, rank)
    return StreamingResponse(drawn(service, pieces), media_type="application/x-ndjson")


def _sample_lines(service: Service, job: str, rank: str) -> Iterator[bytes]:
    logs = service.parts.logs
    names = {stream for _, stream in logs.streams(job) if stream.endswith(SAMPLES)}
    wanted = rank_names(rank)
    if wanted is not None:
        names &= {f"{name}{SAMPLES}" for name in wanted}
    for batch in logs.read_lines(job, streams=names):
        yield "".join(f"{text}\n" for _, _, text in batch.lines).encode()
