"""Pools over HTTP, first form: each user's own files on the server, made of the chunks he uploaded."""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from shoal._lib import clock
from shoal.control.people import User
from shoal.errors import NotFound
from shoal.server import shapes
from shoal.server.chunks import check_chunks
from shoal.server.routing import Asker, Here, as_json
from shoal.server.service import Service
from shoal.server.transfers import Content, download
from shoal.storage.manifest import Entry, Manifest

router = APIRouter(prefix="/pools/{pool}", tags=["pools"])


@router.get("/files", response_model=shapes.FilePage)
async def list_files(
    pool: str,
    service: Here,
    user: Asker,
    prefix: str = "",
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 500,
) -> Response:
    """The files at or below a path, in its order."""
    page = await service.call(_list, service, owner_of(pool, user), prefix, limit, cursor)
    return as_json({"files": page.items, "next": page.next})


def _list(service: Service, owner: str, prefix: str, limit: int, cursor: str | None) -> Any:
    service.store.user(owner)  # NotFound for an administrator who mistyped a name
    return service.store.files(owner, prefix.strip("/"), limit, cursor)


@router.post("/files", status_code=201)
async def commit(pool: str, body: shapes.PoolCommit, service: Here, user: Asker) -> Response:
    """Files made of chunks sent before appear all at once, replacing those of the same path."""
    count = await service.call(_commit, service, owner_of(pool, user), body.prefix, body.entries)
    return as_json({"files": count}, 201)


def _commit(service: Service, owner: str, prefix: str, entries: list[dict[str, Any]]) -> int:
    manifest = Manifest.parse({"entries": [_below(prefix, raw) for raw in entries]})
    service.store.user(owner)
    check_chunks(service, owner, manifest)
    service.store.put_files(owner, [entry.model_dump() for entry in manifest.entries], clock.now())
    return len(manifest.entries)


def _below(prefix: str, raw: dict[str, Any]) -> dict[str, Any]:
    inside = prefix.strip("/")
    path = raw.get("path")
    return {**raw, "path": f"{inside}/{path}"} if inside and isinstance(path, str) and path else raw


@router.delete("/files")
async def remove(pool: str, prefix: str, service: Here, user: Asker) -> Response:
    """Removes the files at or below a path; `/` means all of them."""
    count = await service.call(service.store.remove_files, owner_of(pool, user), prefix.strip("/"))
    return as_json({"files": count})


@router.get("/file", response_class=StreamingResponse)
async def get_file(pool: str, path: str, request: Request, service: Here, user: Asker) -> Response:
    """One file; Range is served."""
    owner = owner_of(pool, user)
    entry = await service.call(_find, service, owner, path.strip("/"))
    opener = partial(service.parts.chunks.open, owner)
    version = sha256("".join(entry.chunks).encode()).hexdigest()[:32]
    return download(service, request, Content(entry.path, entry.size, version, partial(entry.read, opener)))


def _find(service: Service, owner: str, path: str) -> Entry:
    for raw in service.store.files(owner, path, 1, None).items:
        if raw["path"] == path:
            return Entry.model_validate({key: raw[key] for key in Entry.model_fields if key in raw})
    raise NotFound(f"the pool has no file {path[:200]!r}; see 'shoal data ls'", path=path[:200])


def owner_of(pool: str, user: User) -> str:
    """Whose pool it is: `me`, one's own name, or, for an administrator, anybody's."""
    if pool in ("me", user.name):
        return user.name
    if user.admin:
        return pool
    raise NotFound(f"there is no pool {pool[:100]!r} for you; yours is pool://me/")
