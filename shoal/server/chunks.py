"""Uploads: which chunks are missing, the chunks themselves, and the manifests that make folders of them."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from shoal.control.people import User
from shoal.errors import BadRequest, MissingChunks
from shoal.server import shapes
from shoal.server.routing import Asker, Here, as_json
from shoal.server.service import Service
from shoal.storage.manifest import Manifest

router = APIRouter(tags=["uploads"])


@router.post("/chunks/missing")
async def missing(body: shapes.Digests, service: Here, user: Asker) -> Response:
    """Those of the digests that the caller has yet to send."""
    found = await service.call(service.parts.chunks.missing, user.name, body.digests)
    return as_json({"missing": [digest for digest in dict.fromkeys(body.digests) if digest in found]})


@router.put("/chunks/{digest}", status_code=204)
async def put_chunk(digest: str, request: Request, service: Here, user: Asker) -> Response:
    """One chunk, at most 4 MiB, named by its SHA-256; again is harmless."""
    content = await whole_body(request)
    await service.call(service.parts.chunks.put, user.name, digest, content)
    return Response(status_code=204)


async def whole_body(request: Request) -> bytes:
    """The body, all of it: one that breaks off before its declared length is refused."""
    content = b"".join([piece async for piece in request.stream()])
    declared = request.headers.get("content-length")
    if declared is not None and int(declared) != len(content):
        raise BadRequest(f"{len(content)} of {declared} bytes came; send the chunk again")
    return content


@router.post("/manifests", status_code=201)
async def put_manifest(body: shapes.ManifestRequest, service: Here, user: Asker) -> Response:
    """A folder made of chunks sent before; 409 with the list when some never came."""
    return as_json({"id": await service.call(_put_manifest, service, user, body.entries)}, 201)


def _put_manifest(service: Service, user: User, entries: list[dict[str, object]]) -> str:
    manifest = Manifest.parse({"entries": entries})
    check_chunks(service, user.name, manifest)
    return service.store.put_manifest(user.name, manifest.digest(), manifest.model_dump_json())


def check_chunks(service: Service, owner: str, manifest: Manifest) -> None:
    absent = service.parts.chunks.missing(owner, manifest.chunks)
    if absent:
        raise MissingChunks(sorted(absent))
