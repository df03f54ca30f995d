"""A small real HTTP server that plays the API: each test says what it answers, and can look at what was asked."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

BASE = "/api/v1"


class Break(Exception):
    """Raised by an answer's body to cut the connection there, as a server that dies does."""


@dataclass
class Asked:
    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Answer:
    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    stream: Iterable[bytes] | None = None
    length: int | None = None


def problem(status: int, code: str, detail: str, **facts: Any) -> Answer:
    body = {"type": "about:blank", "title": "x", "status": status, "detail": detail, "code": code, **facts}
    return Answer(body, status, {"Content-Type": "application/problem+json"})


def sse(data: Any, cursor: str | None = None, event: str | None = None) -> bytes:
    head = (f"id: {cursor}\n" if cursor else "") + (f"event: {event}\n" if event else "")
    return f"{head}data: {json.dumps(data)}\n\n".encode()


Reply = Callable[[Asked], Answer]


class FakeServer:
    """Answers on a port of its own until closed; `asked` is everything that came."""

    def __init__(self, port: int = 0) -> None:
        self.replies: dict[tuple[str, str], Reply] = {("GET", "/healthz"): lambda _: Answer({"ok": True})}
        self.asked: list[Asked] = []
        self._http = _Http(("127.0.0.1", port), self)
        self.port: int = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def on(self, method: str, path: str, reply: Reply | Any) -> None:
        self.replies[(method, BASE + path)] = reply if callable(reply) else lambda _: Answer(reply)

    def count(self, method: str, start: str) -> int:
        return sum(one.method == method and one.path.startswith(BASE + start) for one in self.asked)

    def answer(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        found = self.replies.get((asked.method, asked.path))
        if found is None:
            starts = [key for key in self.replies if key[1].endswith("*")]
            found = next(
                (self.replies[k] for k in starts if k[0] == asked.method and asked.path.startswith(k[1][:-1])), None
            )
        return found(asked) if found else problem(404, "not_found", f"nothing at {asked.path}")

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._http.cut_all()
        self._thread.join()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], fake: FakeServer) -> None:
        self.fake = fake
        self._open: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def cut_all(self) -> None:
        """Kept connections would be answered for ever by their threads."""
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that leave are part of the play."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Http

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            self._send(
                self.server.fake.answer(Asked(self.command, parts.path, dict(parse_qsl(parts.query)), headers, body))
            )
        except Break:
            # Shut down and not only closed: other references to the socket would keep it open.
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.stream is None:
            content = (
                answer.body if isinstance(answer.body, bytes) else b"" if answer.body is None else _json(answer.body)
            )
            if "Content-Type" not in answer.headers:
                self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            return
        self._send_stream(answer)

    def _send_stream(self, answer: Answer) -> None:
        assert answer.stream is not None
        if answer.length is not None:
            self.send_header("Content-Length", str(answer.length))
            self.end_headers()
            for piece in answer.stream:
                self.wfile.write(piece)
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in answer.stream:
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


class Chunkery:
    """The upload routes, for real: chunks are kept and checked, manifests refused while chunks are missing."""

    def __init__(self, server: FakeServer) -> None:
        self.chunks: dict[str, bytes] = {}
        self.manifests: list[list[dict[str, Any]]] = []
        self.batches: list[int] = []
        server.on("POST", "/chunks/missing", self._missing)
        server.on("PUT", "/chunks/*", self.put)
        server.on("POST", "/manifests", self._manifest)

    def content(self, path: str, manifest: int = -1) -> bytes:
        entry = next(entry for entry in self.manifests[manifest] if entry["path"] == path)
        return b"".join(self.chunks[digest] for digest in entry["chunks"])

    def paths(self, manifest: int = -1) -> list[str]:
        return [entry["path"] for entry in self.manifests[manifest]]

    def put(self, asked: Asked) -> Answer:
        digest = asked.path.rsplit("/", 1)[-1]
        if sha256(asked.body).hexdigest() != digest:
            return problem(400, "bad_chunk", "content does not match its name")
        self.chunks[digest] = asked.body
        return Answer(None, 204)

    def _missing(self, asked: Asked) -> Answer:
        digests = asked.json()["digests"]
        self.batches.append(len(digests))
        return Answer({"missing": [digest for digest in digests if digest not in self.chunks]})

    def _manifest(self, asked: Asked) -> Answer:
        entries = asked.json()["entries"]
        absent = [digest for entry in entries for digest in entry["chunks"] if digest not in self.chunks]
        if absent:
            return problem(409, "missing_chunks", f"{len(absent)} chunks are missing", digests=absent)
        self.manifests.append(entries)
        return Answer({"id": sha256(_json(entries)).hexdigest()}, 201)
