"""What the server is and has: version, nodes, engines, sizes, health, metrics."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from shoal.frameworks import describe
from shoal.server.metrics import MEDIA_TYPE
from shoal.server.routing import Admin, Asker, Here, as_json

router = APIRouter(tags=["cluster"])
root = APIRouter(tags=["cluster"])


@router.get("/server")
async def server(service: Here, user: Asker) -> Response:
    isolation = await service.call(service.parts.isolation)
    return as_json(
        {
            "version": service.version,
            "url": service.parts.url,
            "fingerprint": service.parts.fingerprint,
            "engine": service.parts.default_engine,
            "database": service.store.dialect,
            "started_at": service.started_at,
            "isolation": {"mode": isolation.mode, "why": isolation.why},
            "identity_note": isolation.note,
        }
    )


@router.get("/nodes")
async def nodes(service: Here, user: Asker) -> Response:
    """Every node with what it has and what is free."""
    return as_json({"nodes": await service.call(service.desk.nodes)})


@router.get("/engines")
async def engines(service: Here, user: Asker) -> Response:
    return as_json({"engines": await service.call(service.desk.engines)})


@router.get("/frameworks")
async def frameworks(service: Here, user: Asker) -> Response:
    """Every framework that is served: its strategies, their roles, and what is refused and why."""
    return as_json({"frameworks": describe(service.parts.served.frameworks)})


@router.get("/sizes")
async def sizes(service: Here, user: Asker) -> Response:
    """The named sizes the administrator set."""
    known = service.settings.sizes
    return as_json({"sizes": {name: size.model_dump(exclude_none=True) for name, size in known.items()}})


@root.get("/healthz")
async def health(service: Here) -> Response:
    """Whether the server answers; no token needed, nothing told but that."""
    return as_json({"ok": True})


@root.get("/metrics", response_class=Response)
async def metrics(service: Here, admin: Admin) -> Response:
    """For Prometheus."""
    jobs = await service.call(service.store.counts)
    return Response(service.metrics.render(jobs, service.loop.last_round), media_type=MEDIA_TYPE)
