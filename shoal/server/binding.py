"""Where the server listens: the socket, the port that survives a restart, the address it tells others."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from shoal._lib.clock import Deadline
from shoal.errors import BadConfig
from shoal.home import Home

PATIENCE = 2.0  # seconds to wait for the old port: a shepherd that knocks at it may hold it for a moment
WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True)
class Listener:
    """A bound socket, the address others reach it at, and a warning when that is not where it was before."""

    socket: socket.socket
    host: str
    port: int
    warning: str | None = None

    def url(self, tls: bool) -> str:
        host = WILDCARDS.get(self.host, self.host)
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if tls else 'http'}://{shown}:{self.port}"


def listen(host: str, port: int | None, home: Home) -> Listener:
    """Binds the port asked for, else the one of the last start, else any."""
    if port:
        return _listener(_bind(host, port), host)
    before = _last_port(home)
    if before is None:
        return _listener(_bind(host, 0), host)
    deadline = Deadline(PATIENCE)
    while not deadline.over():
        try:
            return _listener(_bind(host, before), host)
        except BadConfig:
            time.sleep(0.1)
    warning = f"port {before} of the last start is taken by another program, so jobs that still run cannot report"
    return _listener(_bind(host, 0), host, warning)


def _listener(bound: socket.socket, host: str, warning: str | None = None) -> Listener:
    port = int(bound.getsockname()[1])
    return Listener(bound, host, port, warning and f"{warning}; now listening on {port}")


def _last_port(home: Home) -> int | None:
    try:
        note = home.read_note()
    except (ValueError, TypeError):
        return None  # written by another version, or cut short: as if it were not there
    return urlsplit(note.url).port if note is not None else None


def _bind(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as wrong:
        raise BadConfig(
            f"host {host!r} is not an address of this machine: {wrong}; give a name or address it has"
        ) from None
    family, kind, protocol, _, address = found[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as wrong:
        bound.close()
        raise BadConfig(f"cannot listen on {host} port {port}: {wrong.strerror}; choose another") from None
    return bound
