"""The asking end of a connection: open, prove, ask, close.

An ask has no time limit of its own, because a server may rightly hold its answer; a peer that died is noticed by the
end of its stream at once, a machine that is gone by the kernel's probes within SILENCE. Either is PeerLost, after which
the link is closed for good: whoever asked opens another and finds out what arrived.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from shoal._lib.backoff import delay
from shoal.errors import NotAllowed, ShoalError, by_code
from shoal.train.errors import PeerLost, WaitedTooLong
from shoal.train.wire import frames, proof
from shoal.train.wire.bulk import Bulk
from shoal.train.wire.frames import Buffer, Ended, Garbled, Meta

DEADLINE = 30.0  # seconds to reach a peer and prove to it
SILENCE = 30  # seconds after which a peer whose machine says nothing counts as lost
BUFFERS = 4 << 20  # bytes the kernel may hold of a connection, each way
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.25  # seconds between two tries to connect
BRIEF = 1.0  # seconds that may be too few for a busy peer to answer in
ERROR = "error"
FURTHER = "+"  # begins the name of a service that is a further socket of a link; its token follows


@dataclass(frozen=True)
class Reply:
    """An answer. The payload lies where `into` pointed, or in memory of its own; empty when there is none."""

    meta: Meta
    payload: memoryview


class Pending:
    """An answer that is still to come; `wait` gives it once, or raises what the peer raised."""

    def __init__(self, link: Link, into: memoryview | None) -> None:
        self.into = into
        self.reply: Reply | None = None
        self._link = link

    def ready(self, seconds: float) -> bool:
        """Whether something can be read within that time: an answer, or the end of the link. Gives nothing up."""
        return self.reply is not None or self._link._readable(seconds)

    def wait(self, patience: float | None = None) -> Reply:
        """Blocks until the answer is here. WaitedTooLong after `patience` seconds, and the link is closed then."""
        return self._link._collect(self, patience)


class Link:
    """One connection to one service of one peer. Threads may share it; their asks take turns."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.peer = peer
        self.bytes_sent = 0
        self.bytes_received = 0
        self._sock = sock
        self._bulk = Bulk()
        self._why: str | None = None  # why it is closed
        self._pending: deque[Pending] = deque()
        self._sending = threading.Lock()
        self._reading = threading.Lock()

    @classmethod
    def open(
        cls,
        host: str,
        port: int,
        secret: bytes,
        *,
        service: str,
        me: str,
        peer: str | None = None,
        deadline: float = DEADLINE,
        sockets: int = 1,
    ) -> Link:
        """Connects and proves, both ways; with several sockets large payloads travel over all of them. A peer that
        does not listen yet, or dies meanwhile, is tried again until `deadline` seconds have passed: then PeerLost
        (nobody there) or WaitedTooLong (there, but silent). NotAllowed at once when a secret is wrong; UnknownName when
        the peer has no such service."""
        name, until = peer or f"{host}:{port}", time.monotonic() + deadline
        tries, why = 0, OSError("there was no time to try")
        while True:
            patience = max(until - time.monotonic(), 0.001)
            try:
                return cls._try(host, port, secret, service, me, name, patience, sockets)
            except NotAllowed as refused:
                raise NotAllowed(f"{name} at {host}:{port}: {refused.message}") from refused
            except OSError as failed:
                left = until - time.monotonic()
                if not (tries and patience < BRIEF and isinstance(failed, TimeoutError)):
                    why = failed  # a last try that the deadline cut short says less than the one before
            if left <= 0:
                _give_up(name, host, port, deadline, why)
            time.sleep(min(delay(tries, FIRST_PAUSE, LONGEST_PAUSE), left))
            tries += 1

    @classmethod
    def _try(
        cls, host: str, port: int, secret: bytes, service: str, me: str, peer: str, patience: float, sockets: int
    ) -> Link:
        sock, welcome = _welcomed(host, port, secret, service, me, patience)
        link = cls(sock, peer)
        try:
            for _ in range(sockets - 1):
                link._bulk.add(_welcomed(host, port, secret, f"{FURTHER}{welcome['token']}", me, patience)[0])
        except BaseException:
            link.close()
            raise
        return link

    @property
    def closed(self) -> bool:
        return self._why is not None

    def fileno(self) -> int:
        """For whoever watches the stream for its end; -1 when it is closed."""
        return self._sock.fileno()

    def ask(self, meta: Meta, payload: Sequence[Buffer] = (), into: memoryview | None = None) -> Reply:
        """Sends and blocks for the answer. Raises what the peer raised, by its code; PeerLost when the link is gone."""
        return self.begin(meta, payload, into).wait()

    def begin(self, meta: Meta, payload: Sequence[Buffer] = (), into: memoryview | None = None) -> Pending:
        """Sends now; the answer is waited for later. Answers come in the order of the asks, and the peer works at one
        ask of a link at a time. The buffers may change when this returns. Large answers must be waited for before more
        large payloads are sent, or both ends may sit on full buffers."""
        pending = Pending(self, into)
        with self._sending:
            self._must_be_open()
            self._pending.append(pending)
            try:
                self.bytes_sent += frames.send(self._sock, meta, payload, self._bulk)
            except ValueError:
                self._pending.pop()
                raise
            except OSError as failed:
                self._lost(failed)
        return pending

    def close(self) -> None:
        """Harmless twice, and from another thread: who waits there gets PeerLost."""
        self._end("it was closed here")

    def _collect(self, pending: Pending, patience: float | None) -> Reply:
        with self._reading:
            until = None if patience is None else time.monotonic() + patience
            while pending.reply is None:
                self._must_be_open()
                first = self._pending[0]
                first.reply = self._next(first.into, until)
                self._pending.popleft()
        raise_if_error(pending.reply.meta)
        return pending.reply

    def _next(self, into: memoryview | None, until: float | None) -> Reply:
        if until is not None:
            self._await_first_byte(until)
        try:
            return self._read(into)
        except (OSError, ValueError) as failed:
            self._lost(failed)

    def _await_first_byte(self, until: float) -> None:
        if not self._readable(until - time.monotonic()):
            self._end("its answer did not come in time")
            raise WaitedTooLong(f"{self.peer} did not answer in the time it was given; is it stopped?", [self.peer])

    def _readable(self, seconds: float) -> bool:
        if self.closed:
            return True  # whoever reads will be told
        poll = select.poll()
        poll.register(self._sock, select.POLLIN | select.POLLHUP | select.POLLERR)
        return bool(poll.poll(max(0.0, seconds) * 1000))

    def _read(self, into: memoryview | None) -> Reply:
        meta, payload = frames.receive(self._sock, None if into is None else lambda _meta, _size: into, self._bulk)
        self.bytes_received += payload.nbytes
        return Reply(meta, payload)

    def _must_be_open(self) -> None:
        if self._why is not None:
            raise PeerLost(f"the link to {self.peer} is closed: {self._why}; open another", [self.peer])

    def _lost(self, failed: Exception) -> NoReturn:
        self._end(f"{failed}" or type(failed).__name__)
        raise PeerLost(
            f"lost {self.peer}: {self._why}; it died or its machine is out of reach", [self.peer]
        ) from failed

    def _end(self, why: str) -> None:
        if self._why is None:
            self._why = why
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads
            self._sock.close()
            self._bulk.close()


def _welcomed(
    host: str, port: int, secret: bytes, service: str, me: str, patience: float
) -> tuple[socket.socket, Meta]:
    """A socket that has proved itself and was let in, and what it was told then."""
    sock = socket.create_connection((host, port), timeout=patience)
    try:
        tune(sock)
        # Not proof.PATIENCE: between two servers the call waits in the backlog until the next one takes it.
        proof.answer(sock, secret, service, me, patience)
        sock.settimeout(patience)
        welcome, _ = frames.receive(sock)
        raise_if_error(welcome)
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    return sock, welcome


def raise_if_error(meta: Meta) -> None:
    if meta.get("kind") == ERROR:
        raise revive(meta)


def tune(sock: socket.socket) -> None:
    """Small messages leave at once, large ones fill large buffers, and a silent machine is noticed."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, BUFFERS)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 5),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 5),
        ("TCP_USER_TIMEOUT", SILENCE * 1000),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def tell(error: BaseException) -> Meta:
    """An error as it travels: its code, its message and its facts."""
    if isinstance(error, ShoalError):
        return {"kind": ERROR, "code": error.code, "message": error.message, "facts": error.facts}
    return {"kind": ERROR, "code": ShoalError.code, "message": f"{type(error).__name__}: {error}", "facts": {}}


def revive(meta: Meta) -> ShoalError:
    """The error that travelled, of its own class where this version knows the code."""
    kind, facts = by_code(str(meta.get("code"))), dict(meta.get("facts") or {})
    error = kind.__new__(kind)
    # Classes have constructors of their own; what they make of their arguments is in the message and the facts already.
    ShoalError.__init__(error, str(meta.get("message")), **facts)
    for name, value in facts.items():
        setattr(error, name, value)
    return error


def _give_up(name: str, host: str, port: int, deadline: float, why: OSError) -> NoReturn:
    if isinstance(why, TimeoutError):
        raise WaitedTooLong(
            f"{name} at {host}:{port} takes calls but has said nothing for {deadline:g} s; is it stopped?", [name]
        ) from why
    said = "another program listens there" if isinstance(why, Garbled) else f"{why}"
    if isinstance(why, Ended):
        said = "it hangs up"
    raise PeerLost(
        f"{name} at {host}:{port} could not be reached for {deadline:g} s: {said}; is it running?", [name]
    ) from why
