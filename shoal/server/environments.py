"""Environments over HTTP: presets, and what is built on the server's machine. Building one is a job like any other."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from shoal.control.environments import list_environments, remove_environment, show_environment
from shoal.server import shapes
from shoal.server.routing import Asker, Here, as_json

router = APIRouter(prefix="/environments", tags=["environments"])


@router.get("", response_model=shapes.Environments)
async def environments(service: Here, user: Asker) -> Response:
    """Every preset, and what is built here with its size, its last use and its users."""
    return as_json(await service.call(list_environments, service.parts))


@router.get("/{name}")
async def environment(name: str, service: Here, user: Asker) -> Response:
    """A preset by its name, or a built environment by its key, the beginning of it, or its name."""
    return as_json(await service.call(show_environment, service.parts, name))


@router.delete("/{name}")
async def remove(name: str, service: Here, user: Asker) -> Response:
    """Removes a built environment that nobody runs in; the next job that needs it builds it again."""
    return as_json(await service.call(remove_environment, service.parts, name))
