"""The application: all routes behind one door."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from shoal.errors import ShoalError
from shoal.server import chunks, cluster, environments, jobs, logs, people, pools, problems, shapes, webhooks
from shoal.server.door import API, EXPLAINED, Door
from shoal.server.feeds import Feeds
from shoal.server.gangs import GangEntrance
from shoal.server.service import Service


def build_app(service: Service, hosts: frozenset[str] | None = None) -> Door:
    """`hosts`: the names the server answers to; None for any."""
    return Door(build_routes(service), GangEntrance(service), service, hosts)


def build_routes(service: Service) -> FastAPI:
    """What people and their programs use; OpenAPI describes it at /openapi.json."""
    app = FastAPI(
        title="Shoal",
        version=service.version,
        docs_url=None,
        redoc_url=None,
        responses={"default": {"model": shapes.Problem, "description": "a problem document"}},
    )
    app.state.service = service
    app.state.feeds = Feeds(service)
    for part in (jobs, logs, chunks, pools, people, webhooks, environments, cluster):
        app.include_router(part.router, prefix=API)
    app.include_router(cluster.root)
    app.include_router(cluster.root, prefix=API, include_in_schema=False)
    for kind in (ShoalError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _answer)
    app.add_exception_handler(Exception, _answer_unforeseen)
    return app


async def _answer(request: Request, wrong: Exception) -> Response:
    return problems.answer(problems.explain(wrong))


async def _answer_unforeseen(request: Request, wrong: Exception) -> Response:
    # Starlette raises it again after this answer; the door then knows that it was dealt with.
    request.scope[EXPLAINED] = True
    return problems.answer(problems.explain(wrong))
