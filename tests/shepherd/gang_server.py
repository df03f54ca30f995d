"""A real HTTP server that plays the gang's interface of the server, in memory."""

from __future__ import annotations

import gzip
import json
import struct
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from shoal._lib import frames
from shoal.contract import Member, Process, Roster

SECRET = "s3cret"


class GangServer:
    """The server's side of one gang, in memory; survives being switched off and on at the same port."""

    def __init__(self, key: str, processes: list[Process], beat: float = 5.0) -> None:
        self.key = key
        self.processes = processes
        self.beat = beat
        self.code: bytes | None = None
        self.inputs: dict[str, bytes | None] = {}  # none: the server has lost it
        self.environment: dict[str, Any] | None = None
        self.over = False
        self.over_but_for: tuple[str, ...] = ()  # what is still taken when it is over
        self.refuse_logs = False
        self.refuse_records = False
        self.nonsense: set[str] = set()  # paths that are answered with something else, once
        self.joins: list[dict[str, Any]] = []
        self.events: dict[int, dict[str, Any]] = {}
        self.progress: dict[str, dict[str, Any]] = {}
        self.streams: dict[str, bytearray] = {}
        self.done: list[str] = []
        self.records: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.roster_version = 1
        self.lose_answers = 0  # so many requests for logs are taken without an answer
        self._directives: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._http: ThreadingHTTPServer | None = None
        self._port = 0
        self.switch_on()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def switch_on(self) -> None:
        handler = type("Bound", (_Handler,), {"gang": self})
        ThreadingHTTPServer.daemon_threads = True
        self._http = ThreadingHTTPServer(("127.0.0.1", self._port), handler)
        self._http.connections = set()  # type: ignore[attr-defined]
        self._port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def switch_off(self) -> None:
        """As if it were killed: no more answers, all connections cut."""
        http, self._http = self._http, None
        if http is not None:
            http.shutdown()
            http.server_close()
            for connection in list(http.connections):  # type: ignore[attr-defined]
                connection.close_now()
        with self._changed:
            self._changed.notify_all()

    def direct(self, kind: str, **data: Any) -> None:
        with self._changed:
            self._directives.append({"seq": len(self._directives) + 1, "kind": kind, "data": data})
            self._changed.notify_all()

    def news(self, seen: int, wait: float) -> list[dict[str, Any]]:
        with self._changed:
            self._changed.wait_for(lambda: len(self._directives) > seen or self._http is None or self.over, wait)
            return self._directives[seen:]

    def take_events(self, events: list[dict[str, Any]]) -> int:
        for event in events:
            self.events.setdefault(event["n"], event)
        acked = 0
        while acked + 1 in self.events:
            acked += 1
        return acked

    def take_logs(self, body: bytes) -> dict[str, int]:
        head = struct.Struct(">HQI")
        ends: dict[str, int] = {}
        at = 0
        while at < len(body):
            length, offset, size = head.unpack_from(body, at)
            at += head.size
            name = body[at : at + length].decode()
            at += length
            data = zlib.decompress(body[at : at + size])
            at += size
            assert frames.whole(data) == len(data), "a piece that is not whole frames"
            stream = self.streams.setdefault(name, bytearray())
            if offset <= len(stream):
                stream += data[len(stream) - offset :]
                assert frames.whole(stream) == len(stream), "the stream is torn"
            ends[name] = len(stream)
        return ends

    def kinds(self, event: str) -> list[dict[str, Any]]:
        return [record for record in list(self.events.values()) if record["event"] == event]

    def frames(self, stream: str) -> list[tuple[int, bytes]]:
        return list(frames.decode(bytes(self.streams.get(stream, b""))))

    def raw(self, stream: str) -> bytes:
        return b"".join(payload for _, payload in self.frames(stream))

    def lines(self, stream: str) -> list[str]:
        return self.raw(stream).decode("utf-8", "replace").splitlines()

    def samples(self, member: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines(f"{member}.samples")]

    def roster(self) -> Roster:
        ports = self.joins[-1]["ports"] if self.joins else {}
        members = [
            Member(each.name, each.name.rpartition("-")[0], at, "node0", "127.0.0.1", ports.get(each.name, {}))
            for at, each in enumerate(self.processes)
        ]
        return Roster(self.roster_version, self.key, members)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    gang: GangServer

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self)  # type: ignore[attr-defined]

    def finish(self) -> None:
        self.server.connections.discard(self)  # type: ignore[attr-defined]
        try:
            super().finish()
        except OSError:
            self.close_connection = True

    def handle(self) -> None:
        try:
            super().handle()
        except (OSError, ValueError):
            self.close_connection = True

    def close_now(self) -> None:
        try:
            self.connection.shutdown(2)
        except OSError:
            pass

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers["Content-Length"])))

    def _serve(self, body: bytes) -> None:
        gang = self.gang
        path = self.path.partition("?")[0].removeprefix(f"/api/v1/gangs/{gang.key}/")
        gang.requests.append(path)
        if self.headers["Authorization"] != f"Gang {SECRET}":
            self._json({"code": "not_signed_in"}, 401)
        elif gang.over and path not in gang.over_but_for:
            self._json({"code": "gang_over"}, 410)
        elif gang._http is None:
            self.close_connection = True
        elif path in gang.nonsense:
            gang.nonsense.discard(path)
            self._json({"welcome": "to the hotel's network"})
        else:
            self._route(gang, path, body)

    def _route(self, gang: GangServer, path: str, body: bytes) -> None:
        if path == "logs":
            self._logs(gang, body)
        elif path == "launch":
            processes = [each.to_dict() for each in gang.processes]
            known = {"roster": gang.roster_version, "code": gang.code is not None, "inputs": list(gang.inputs)}
            self._json({"processes": processes, "grace": 5, "environment": gang.environment, **known})
        elif path == "roster":
            self._answer(gzip.compress(gang.roster().to_json().encode()), "application/json", gzipped=True)
        elif path == "code":
            self._chunked(gang.code or b"")
        elif path.startswith("inputs/"):
            content = gang.inputs[path.removeprefix("inputs/")]
            if content is None:
                self._json({"code": "not_found", "detail": "pool://me/x holds nothing"}, 404)
            else:
                self._chunked(content)
        else:
            self._said(gang, path, json.loads(body))

    def _said(self, gang: GangServer, path: str, said: dict[str, Any]) -> None:
        if path == "join":
            gang.joins.append(said)
            self._json({"beat": gang.beat, "roster": 0, "offsets": {}})
        elif path == "beat":
            for member, facts in said["ranks"].items():
                gang.progress[member] = facts
            directives = gang.news(said["seen"], said["wait"])
            if gang.over:
                self._json({"code": "gang_over"}, 410)
            elif gang._http is None:
                self.close_connection = True
            else:
                self._json({"beat": gang.beat, "wait": gang.beat, "directives": directives})
        elif path == "ranks":
            self._json({"acked": gang.take_events(said["events"]), "directives": gang.news(said["seen"], 0)})
        elif path == "record" and not gang.refuse_records:
            gang.records.append(said["record"])
            self._json({})
        elif path == "done":
            gang.done.append(said["node"])
            self._json({})
        else:
            self._json({"code": "no_such_path"}, 404)

    def _logs(self, gang: GangServer, body: bytes) -> None:
        if gang.refuse_logs:
            self._json({"code": "store"}, 503)
            return
        ends = gang.take_logs(body)
        if gang.lose_answers > 0:
            gang.lose_answers -= 1
            self.close_connection = True
            self.close_now()
        else:
            self._json({"offsets": ends})

    def _json(self, content: dict[str, Any], status: int = 200) -> None:
        self._answer(json.dumps(content).encode(), "application/json", status)

    def _answer(self, body: bytes, kind: str, status: int = 200, gzipped: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if gzipped:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        self.wfile.write(body)

    def _chunked(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for at in range(0, len(body), 10_000):
            piece = body[at : at + 10_000]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")
