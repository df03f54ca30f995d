"""The shepherds' entrance: joins, beats, launches, logs. Plain ASGI without models: thousands knock every few seconds.

A beat that brings nothing new touches no database and writes no line; the rules are in `control.gangs`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, unquote

from pydantic_core import to_json
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from shoal.contract import AUTH_SCHEME
from shoal.control.parts import BEAT_SECONDS
from shoal.errors import BadRequest, NotFound, NotSignedIn
from shoal.server import problems
from shoal.server.door import GANGS, LIMIT, header, limited
from shoal.server.journal import note_request
from shoal.server.service import Service
from shoal.server.transfers import drawn

LONGEST_WAIT = 20.0  # seconds a beat is held open
LOGS_LIMIT = 16 << 20  # bytes of one batch
_SCHEME = AUTH_SCHEME.lower()


class GangEntrance:
    """One ASGI application for /api/v1/gangs/{key}/…"""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._gangs = service.gangs
        self._bell = service.parts.bell
        self._routes: dict[tuple[str, str], Callable[[_Knock], Awaitable[Response]]] = {
            ("POST", "join"): self._join,
            ("POST", "beat"): self._beat,
            ("GET", "launch"): self._launch,
            ("GET", "roster"): self._roster,
            ("GET", "code"): self._code,
            ("GET", "inputs"): self._input,
            ("POST", "ranks"): self._ranks,
            ("POST", "record"): self._record,
            ("POST", "logs"): self._logs,
            ("POST", "done"): self._done,
        }

    @property
    def paths(self) -> list[tuple[str, str]]:
        """(method, path) of every route, for those who want to try them all."""
        return [(method, f"{GANGS}{{key}}/{name}") for method, name in self._routes]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.monotonic()
        knock = _Knock(scope, receive)
        try:
            answer = await self._answer(knock)
        except Exception as wrong:
            answer = problems.answer(problems.explain(wrong))
        await answer(scope, receive, send)
        seconds = time.monotonic() - began
        self._service.metrics.request(knock.method, f"/gangs/{{key}}/{knock.name}", answer.status_code, seconds)
        if answer.status_code >= 400:
            note_request(knock.method, scope["path"], answer.status_code, seconds, f"gang {knock.key}")

    async def _answer(self, knock: _Knock) -> Response:
        act = self._routes.get((knock.method, knock.name))
        if act is None:
            knock.name = "other"  # before anything is counted: strangers must not invent names for the metrics
        await self._check(knock)
        if act is None:
            raise NotFound("shepherds have no business at this address")
        return await act(knock)

    async def _check(self, knock: _Knock) -> None:
        late = knock.name in ("logs", "done")
        if self._gangs.knows(knock.key):
            self._gangs.check(knock.key, knock.secret, late)
        else:
            await self._service.call(self._gangs.check, knock.key, knock.secret, late)

    async def _join(self, knock: _Knock) -> Response:
        body = await knock.json()
        knock.text(body, "node")
        knock.text(body, "address")
        answer = await self._service.call(self._gangs.join, knock.key, body)
        self._service.metrics.joins += 1
        return _json(answer)

    async def _beat(self, knock: _Knock) -> Response:
        body = await knock.json()
        node, seen = knock.text(body, "node"), knock.number(body, "seen")
        self._gangs.seen(knock.key, node)
        if body.get("ranks"):
            await self._service.call(self._gangs.progress, knock.key, body["ranks"])
        wait = min(knock.number(body, "wait"), LONGEST_WAIT)
        directives = await self._next_directives(knock, node, int(seen), wait)
        return _json({"beat": BEAT_SECONDS, "wait": LONGEST_WAIT, "directives": directives})

    async def _next_directives(self, knock: _Knock, node: str, seen: int, wait: float) -> list[dict[str, Any]]:
        """What the node has not been told yet; waits for it. Ends early, with nothing, when the server stops."""
        topic, deadline = f"gang:{knock.key}", time.monotonic() + wait
        while True:
            number = self._bell.number(topic)
            found = await self._service.call(self._gangs.directives, knock.key, node, seen)
            left = deadline - time.monotonic()
            if found or left <= 0 or self._service.closing:
                return found
            if not await self._service.long_wait(self._bell.wait(topic, number, left)):
                return []
            await self._check(knock)

    async def _launch(self, knock: _Knock) -> Response:
        return _json(await self._service.call(self._gangs.launch, knock.key, knock.query("node")))

    async def _roster(self, knock: _Knock) -> Response:
        packed = await self._service.call(self._gangs.roster, knock.key)
        return Response(packed, headers={"content-encoding": "gzip"}, media_type="application/json")

    async def _code(self, knock: _Knock) -> Response:
        pieces = await self._service.call(self._gangs.code, knock.key)
        return StreamingResponse(drawn(self._service, pieces), media_type="application/x-tar")

    async def _input(self, knock: _Knock) -> Response:
        pieces = await self._service.call(self._gangs.input, knock.key, unquote(knock.rest))
        return StreamingResponse(drawn(self._service, pieces), media_type="application/x-tar")

    async def _ranks(self, knock: _Knock) -> Response:
        body = await knock.json()
        knock.text(body, "node")
        if not isinstance(body.get("events"), list):
            raise BadRequest("'events' must be a list")
        return _json(await self._service.call(self._gangs.ranks, knock.key, body))

    async def _record(self, knock: _Knock) -> Response:
        body = await knock.json()
        await self._service.call(self._gangs.record, knock.key, knock.text(body, "node"), body.get("record"))
        return _json({})

    async def _logs(self, knock: _Knock) -> Response:
        body = await knock.body(LOGS_LIMIT)
        self._service.metrics.log_bytes += len(body)
        return _json(await self._service.call(self._gangs.logs, knock.key, body))

    async def _done(self, knock: _Knock) -> Response:
        node = knock.text(await knock.json(), "node")
        await self._service.call(self._gangs.done, knock.key, node)
        return _json({})


class _Knock:
    """One request of a shepherd."""

    __slots__ = ("_receive", "_scope", "key", "method", "name", "rest")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._scope = scope
        self._receive = receive
        self.method: str = scope["method"]
        self.key, _, path = scope["path"][len(GANGS) :].partition("/")
        self.name, _, self.rest = path.partition("/")

    @property
    def secret(self) -> str:
        scheme, _, secret = (header(self._scope, b"authorization") or b"").decode("latin-1").partition(" ")
        if scheme.lower() != _SCHEME:
            raise NotSignedIn("the gang's secret is missing; only the shepherds of the attempt may speak here")
        return secret.strip()

    async def body(self, most: int) -> bytes:
        read = limited(self._scope, self._receive, most)
        pieces = []
        while True:
            message = await read()
            if message["type"] == "http.disconnect":
                raise BadRequest("the request broke off; send it again whole")
            pieces.append(message.get("body", b""))
            if not message.get("more_body"):
                return b"".join(pieces)

    async def json(self) -> dict[str, Any]:
        try:
            body: Any = json.loads(await self.body(LIMIT))
        except ValueError as wrong:
            raise BadRequest(f"the body is not JSON: {wrong}") from None
        if not isinstance(body, dict):
            raise BadRequest("the body must be a JSON object")
        return body

    def query(self, name: str) -> str:
        values = parse_qs(self._scope["query_string"].decode("latin-1")).get(name)
        if not values:
            raise BadRequest(f"the parameter {name!r} is missing")
        return str(values[0])

    @staticmethod
    def text(body: dict[str, Any], name: str) -> str:
        if not isinstance(body.get(name), str):
            raise BadRequest(f"{name!r} must be text")
        return str(body[name])

    @staticmethod
    def number(body: dict[str, Any], name: str) -> float:
        value = body.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 2**63:
            raise BadRequest(f"{name!r} must be a number that is not negative")
        return float(value)


def _json(answer: Any) -> Response:
    return Response(to_json(answer), media_type="application/json")
