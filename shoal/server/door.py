"""The outermost layer: every request passes here once, before any route sees it.

Closed unless opened: a request without a valid token gets no further, whatever its path, except to the few routes named
here. Also here: which host names are answered to, how large a body may be, headers every answer carries, the count and
the line in the log, and the last resort for what nobody foresaw.
"""

from __future__ import annotations

import logging
import re
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal._lib.quantities import format_size
from shoal.control.people import User
from shoal.errors import BadRequest, TooLarge
from shoal.server import problems
from shoal.server.journal import note_request
from shoal.server.service import Service

API = "/api/v1"
GANGS = f"{API}/gangs/"
EXPLAINED = "shoal.explained"  # set in the scope once an unforeseen error has been answered
USER = "shoal.user"  # where the routes find who asks
OPEN = {("GET", "/healthz"), ("HEAD", "/healthz"), ("GET", f"{API}/healthz"), ("HEAD", f"{API}/healthz")}
SIGN_IN = ("POST", f"{API}/tokens")  # with a name and a password instead of a token
LIMIT = 2 << 20  # bytes of a body
LIMITS = (
    (re.compile(rf"{API}/chunks/[0-9a-f]+"), 4 << 20),
    (re.compile(rf"{API}/chunks/missing"), 64 << 20),
    (re.compile(rf"{API}/manifests"), 64 << 20),
    (re.compile(rf"{API}/pools/[^/]+/files"), 64 << 20),
)
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
NO_STORE = (b"cache-control", b"no-store")

log = logging.getLogger("shoal.server")


def header(scope: Scope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


def limit_of(path: str) -> int:
    return next((limit for pattern, limit in LIMITS if pattern.fullmatch(path)), LIMIT)


def limited(scope: Scope, receive: Receive, most: int) -> Receive:
    """The same body, but TooLarge as soon as it is known to be over `most` bytes."""
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > most:
        raise _too_large(most)
    taken = 0

    async def read() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > most:
            raise _too_large(most)
        return message

    return read


def _too_large(most: int) -> TooLarge:
    return TooLarge(f"the request's body is over {format_size(most)}; send less at once", limit=most)


class Door:
    """An ASGI application around the routes (`inner`) and the shepherds' entrance (`gangs`)."""

    def __init__(self, inner: ASGIApp, gangs: ASGIApp, service: Service, hosts: frozenset[str] | None) -> None:
        self._inner = inner
        self._gangs = gangs
        self._service = service
        self._hosts = hosts  # None: any

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"].startswith(GANGS):
            await self._gangs(scope, receive, send)
            return
        visit = _Visit(send)
        try:
            self._check_host(scope)
            await self._let_in(scope)
            await self._inner(scope, limited(scope, receive, limit_of(scope["path"])), visit.send)
        except Exception as wrong:
            await self._last_resort(wrong, scope, receive, visit)
        finally:
            self._note(scope, visit)

    def _check_host(self, scope: Scope) -> None:
        """A page elsewhere whose name was made to point at this machine must not speak to us in its reader's name."""
        if self._hosts is None:
            return
        host = (header(scope, b"host") or b"").decode("latin-1").lower()
        if re.sub(r":\d+$", "", host) not in self._hosts:
            raise BadRequest(f"this server does not answer to the host name {host[:100]!r}; use the address it printed")

    async def _let_in(self, scope: Scope) -> None:
        asked = (scope["method"], scope["path"])
        credentials = header(scope, b"authorization")
        if asked in OPEN or (asked == SIGN_IN and credentials is None):
            scope[USER] = None
            return
        scope[USER] = await self._service.guard.user(credentials)

    async def _last_resort(self, wrong: Exception, scope: Scope, receive: Receive, visit: _Visit) -> None:
        if not visit.status:
            await problems.answer(problems.explain(wrong))(scope, receive, visit.send)
        elif not scope.get(EXPLAINED):
            # The answer is under way and cannot be taken back: cutting the connection is the only honest end.
            problems.explain(wrong)
            raise wrong

    def _note(self, scope: Scope, visit: _Visit) -> None:
        seconds = time.monotonic() - visit.began
        route = getattr(scope.get("route"), "path", None) or ("other" if visit.status == 404 else "door")
        user: User | None = scope.get(USER)
        asked = (scope["method"], scope["path"])
        self._service.metrics.request(scope["method"], route, visit.status, seconds)
        if asked in OPEN and visit.status == 200:
            return  # whoever asks every second whether we are well need not fill the log
        note_request(scope["method"], scope["path"], visit.status, seconds, user.name if user else None)


class _Visit:
    """One request's answer as it goes out: adds the headers, remembers the status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self.began = time.monotonic()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = list(message.get("headers", []))
            cached = any(key == b"cache-control" for key, _ in own)
            message = {**message, "headers": own + HEADERS + ([] if cached else [NO_STORE])}
        await self._send(message)
