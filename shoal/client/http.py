"""One server, spoken to over HTTP: requests, live streams and downloads that outlive its restart.

Answers come back as plain data, problems as the exceptions of `shoal.errors`. What is asked for is up to the modules
above; this one knows only how to ask, when asking again is harmless, and how to go on where a broken answer stopped.
"""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from shoal._lib.backoff import delay
from shoal._lib.clock import Deadline
from shoal.client.problems import AWAY, error_of, is_problem
from shoal.client.sse import Event, events
from shoal.client.tls import context_for
from shoal.client.wire import httpx
from shoal.errors import Conflict, ServerAway

BASE = "/api/v1"
OUTSIDE = ("/healthz", "/metrics", "/openapi.json")  # paths that are not under BASE
RETRIES = 3
PATIENCE = 60.0  # seconds a stream or a download waits for a server that is away
SILENCE = 60.0  # seconds without even a ping after which a stream is taken for dead
HARMLESS = frozenset({"GET", "HEAD", "PUT"})  # asking twice does the same as asking once

# Seconds; below what servers and proxies commonly keep, so that no request goes into a connection being closed.
_KEEP_ALIVE = 3.0

Params = Mapping[str, Any]


class Api:
    """A server and the token for it. Safe to use from several threads."""

    def __init__(self, url: str, token: str | None, fingerprint: str | None = None, timeout: float = 30) -> None:
        self.url = url.rstrip("/")
        self.token = token
        self.fingerprint = fingerprint
        self.timeout = timeout
        self._client = httpx.Client(
            base_url=self.url,
            verify=context_for(self.url, fingerprint),
            timeout=httpx.Timeout(timeout, connect=min(timeout, 10.0)),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=_KEEP_ALIVE),
            trust_env=not self.local,
        )

    def __repr__(self) -> str:
        return f"Api({self.url!r})"

    def __enter__(self) -> Api:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def local(self) -> bool:
        """Whether the server is on this machine."""
        host = urlsplit(self.url).hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    def close(self) -> None:
        self._client.close()

    def healthy(self, timeout: float = 5.0) -> bool:
        """Whether a Shoal server answers there now; says nothing about the token, and does not send it."""
        try:
            answer = self._client.get("/healthz", timeout=timeout)
            return answer.status_code == 200 and isinstance(answer.json(), dict)
        except (httpx.TransportError, ServerAway, ValueError):
            return False

    def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        params: Params | None = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        again: bool | None = None,
    ) -> Any:
        """The answer as plain data: JSON, a list for JSON lines, text for the rest, None for an empty one.

        A server that restarts is asked again, three times with a pause, where that is harmless: always when nothing was
        sent yet, otherwise for GET and PUT, or when the caller says so with `again`.
        """
        harmless = method in HARMLESS if again is None else again
        request = self._client.build_request(
            method, _at(path), json=json, params=_plain(params), content=content, headers=self._headers(headers)
        )
        for tries in range(RETRIES + 1):
            try:
                response = self._client.send(request)
            except httpx.TransportError as broken:
                if tries == RETRIES or not _may_repeat(broken, harmless):
                    raise self._away(broken) from broken
            else:
                gone = response.status_code in AWAY and not is_problem(response)
                if tries == RETRIES or not (gone and harmless):
                    return _decode(response)
            time.sleep(delay(tries, 0.4, 3.0))
        raise AssertionError("unreachable")

    def put_chunk(self, digest: str, data: bytes) -> None:
        """Stores one piece of content under its sha256; twice is harmless."""
        self.request("PUT", f"/chunks/{digest}", content=data, headers={"Content-Type": "application/octet-stream"})

    def stream(
        self,
        path: str,
        params: Params | None = None,
        *,
        cursor: str | None = None,
        done: Callable[[Event], bool] | None = None,
        deadline: Deadline | None = None,
    ) -> Iterator[Event]:
        """Events until the one that is `done` (named `end` unless told otherwise), or until the deadline.

        A connection that breaks is made again with Last-Event-ID, so that nothing is lost or comes twice; after a
        minute without any answer, ServerAway.
        """
        over = done or (lambda event: event.event == "end")
        last, tries = cursor, 0
        patience: Deadline | None = None
        while True:
            broken: Exception | None = None
            try:
                for event in self._connected(path, params, last, deadline):
                    tries, patience = 0, None
                    if event is None:
                        continue
                    last = event.id or last
                    yield event
                    if over(event):
                        return
            except httpx.TransportError as gone:
                broken = gone
            if deadline is not None and deadline.over():
                return
            patience = patience or Deadline(PATIENCE)
            if patience.over():
                raise self._away(broken) from broken
            _pause(tries, deadline)
            tries += 1

    def get_bytes(self, path: str, params: Params | None = None, start: int = 0) -> Iterator[bytes]:
        """The content of a file from `start` on; goes on by Range after a break. Conflict when it changed meanwhile."""
        at, version, tries = start, "", 0
        patience: Deadline | None = None
        while True:
            try:
                with self._opened(path, params, _range(at, version)) as response:
                    if response.status_code == 416:
                        return
                    skip = at if response.status_code == 200 else 0
                    if skip and version:
                        raise Conflict(f"{path} changed while it was fetched; fetch it again")
                    version = _version(response)
                    for piece in _without(response.iter_raw(), skip):
                        at += len(piece)
                        tries, patience = 0, None
                        yield piece
                    return
            except httpx.TransportError as broken:
                patience = patience or Deadline(PATIENCE)
                if patience.over():
                    raise self._away(broken) from broken
            _pause(tries, None)
            tries += 1

    def _connected(
        self, path: str, params: Params | None, last: str | None, deadline: Deadline | None
    ) -> Iterator[Event | None]:
        """One connection's events. A stream taken up again starts at its cursor, no longer at the asked-for tail."""
        asked = dict(params or {})
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-cache"}
        if last is not None:
            headers["Last-Event-ID"] = last
            asked.pop("tail", None)
            asked["cursor"] = last
        silence = SILENCE if deadline is None else max(0.01, min(SILENCE, deadline.left()))
        with self._opened(path, asked, headers, silence) as response:
            for event in events(response.iter_bytes()):
                yield event
                # A ping restarts the read's own time limit; a fresh connection has one that ends with the deadline.
                if event is None and deadline is not None and deadline.left() < silence:
                    return

    def _opened(
        self, path: str, params: Params | None, headers: Mapping[str, str], silence: float | None = None
    ) -> _Opened:
        timeout = httpx.Timeout(self.timeout, connect=min(self.timeout, 10.0), read=silence or self.timeout)
        request = self._client.build_request(
            "GET",
            _at(path),
            params=_plain(params),
            headers=self._headers({"Accept-Encoding": "identity", **headers}),
            timeout=timeout,
        )
        return _Opened(self._client, request)

    def _headers(self, more: Mapping[str, str] | None) -> dict[str, str]:
        own = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return {**own, **(more or {})}

    def _away(self, cause: Exception | None) -> ServerAway:
        if cause is not None and "CERTIFICATE_VERIFY_FAILED" in str(cause):
            return ServerAway(
                f"no authority this machine trusts vouches for the certificate of {self.url} ({cause}); if it is"
                " the server's own, set SHOAL_FINGERPRINT to the one 'shoal server status' shows on its machine",
                url=self.url,
            )
        slow = isinstance(cause, httpx.ReadTimeout)
        what = f"did not answer within {self.timeout:g} s" if slow else "does not answer"
        why = f" ({cause})" if cause is not None and str(cause) and not slow else ""
        return ServerAway(
            f"the server at {self.url} {what}{why}; see whether it runs with 'shoal server status', start it with"
            " 'shoal server start', or set SHOAL_URL to another",
            url=self.url,
        )


class _Opened:
    """An answer whose body is still to come; closed on leaving, and already judged: a problem is raised on entering."""

    def __init__(self, client: httpx.Client, request: httpx.Request) -> None:
        self._client = client
        self._request = request

    def __enter__(self) -> httpx.Response:
        self._response = self._client.send(self._request, stream=True)
        if self._response.status_code < 400 or self._response.status_code == 416:
            return self._response
        try:
            self._response.read()
        finally:
            self._response.close()
        if self._response.status_code in AWAY and not is_problem(self._response):
            raise httpx.ReadError(f"answered {self._response.status_code}", request=self._request)
        raise error_of(self._response)

    def __exit__(self, *_: object) -> None:
        self._response.close()


def _at(path: str) -> str:
    return path if path.startswith(OUTSIDE) else BASE + path


def _plain(params: Params | None) -> dict[str, Any]:
    """Without what was not asked for; None would become an empty value on the wire."""
    return {name: value for name, value in (params or {}).items() if value is not None}


def _may_repeat(broken: Exception, harmless: bool) -> bool:
    if isinstance(broken, (httpx.ConnectError, httpx.ConnectTimeout)):
        return True
    return harmless and not isinstance(broken, httpx.ReadTimeout)


def _decode(response: httpx.Response) -> Any:
    if response.status_code >= 400:
        raise error_of(response)
    if not response.content:
        return None
    kind = response.headers.get("content-type", "").partition(";")[0]
    if kind in ("application/json", "application/schema+json"):
        return response.json()
    if kind == "application/x-ndjson":
        from json import loads

        return [loads(line) for line in response.text.splitlines() if line.strip()]
    return response.text


def _pause(tries: int, deadline: Deadline | None) -> None:
    wait = delay(tries, 0.1, 2.0)
    time.sleep(wait if deadline is None else min(wait, deadline.left()))


def _range(at: int, version: str) -> dict[str, str]:
    if at == 0:
        return {}
    return {"Range": f"bytes={at}-", **({"If-Range": version} if version else {})}


def _version(response: httpx.Response) -> str:
    """What tells this content from a later one, in the form If-Range takes."""
    tag: str = response.headers.get("etag", "")
    return tag if tag and not tag.startswith("W/") else response.headers.get("last-modified", "")


def _without(pieces: Iterator[bytes], skip: int) -> Iterator[bytes]:
    """The pieces after the first `skip` bytes, for a server that does not know Range."""
    for piece in pieces:
        if skip >= len(piece):
            skip -= len(piece)
            continue
        yield piece[skip:]
        skip = 0
