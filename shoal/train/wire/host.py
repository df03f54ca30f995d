"""The answering end: an authenticated listener with services behind it, one thread to a connection.

Nothing of a stranger reaches a service. A caller that dies is noticed at once, also while a service holds its answer:
one thread watches all streams for their end. What a service raises travels back by its code and is raised again there.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import select
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType

from shoal.catalogue import nearest
from shoal.errors import NotAllowed, ShoalError, UnknownName
from shoal.train.wire import frames, proof
from shoal.train.wire.bulk import Bulk
from shoal.train.wire.frames import Ended, Meta
from shoal.train.wire.link import FURTHER, tell, tune
from shoal.train.wire.service import Answer, Peer, Service
from shoal.train.wire.watch import Watch

__all__ = ["Answer", "Host", "Peer", "Service", "listen"]

BACKLOG = 1024  # calls that wait while nobody takes them
MOST_STRANGERS = 128  # callers that have not proved themselves yet; more are turned away
WELCOME: Meta = {"kind": "welcome"}
PAUSE = 0.05  # seconds before calls are taken again after that failed
GRACE = 2.0  # seconds `close` waits for the threads

_log = logging.getLogger("shoal.train")


class Host:
    """Listens from the moment it is made; serves from `start` on. `with Host(...) as host:` starts and closes."""

    def __init__(
        self,
        secret: bytes,
        services: Mapping[str, Service],
        host: str = "127.0.0.1",
        port: int = 0,
        listener: socket.socket | None = None,
    ) -> None:
        """`listener` is a socket that listens already, kept open by somebody who outlives this process."""
        if not secret:
            raise ValueError("a host needs a secret; SHOAL_SECRET is empty")
        self.services: dict[str, Service] = dict(services)
        self.seen: set[str] = set()  # names of all who proved themselves
        self._secret = secret
        self._listener = listener or listen(host, port)
        self._listener.setblocking(False)
        self._ear, self._mouth = socket.socketpair()  # wakes accept: a shutdown would end the listener for its keeper
        self.host, self.port = self._listener.getsockname()[:2]
        self._calls: set[_Call] = set()
        self._tokens: dict[str, _Call] = {}  # of links that may get further sockets
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._strangers = threading.Semaphore(MOST_STRANGERS)
        self._closing = threading.Event()
        self._watch = Watch()
        self._thread = threading.Thread(target=self._accept, name="shoal-host", daemon=True)

    def start(self) -> Host:
        self._watch.start()
        self._thread.start()
        return self

    def close(self) -> None:
        """Ends every connection; each service is told of each peer. Harmless twice."""
        with self._lock:
            if self._closing.is_set():
                return
            self._closing.set()
        self._mouth.close()
        if self._thread.ident is not None:
            self._thread.join(GRACE)
        self._ear.close()
        self._listener.close()
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            call.hang_up()
        until = time.monotonic() + GRACE
        for call in calls:
            call.thread.join(max(0.0, until - time.monotonic()))
        if self._thread.ident is not None:
            self._watch.close()

    def hang_up(self, number: int) -> None:
        """Ends one connection and waits until its thread is done: nothing more is received from it."""
        with self._lock:
            calls = [call for call in self._calls if call.peer is not None and call.peer.number == number]
        for call in calls:
            call.hang_up()
            if call.thread is not threading.current_thread():
                call.thread.join(GRACE)

    def peers(self) -> list[Peer]:
        """Who is connected and has proved itself."""
        with self._lock:
            return [call.peer for call in self._calls if call.peer is not None]

    def __enter__(self) -> Host:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._ear, select.POLLIN)
        while not self._closing.is_set():
            poll.poll()
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                continue
            except OSError as failed:
                if not self._closing.is_set():
                    _log.warning("could not take a call: %s; trying on", failed)
                    self._closing.wait(PAUSE)  # out of file descriptors: some come back
                continue
            if not self._strangers.acquire(blocking=False):
                _log.warning("turned a call from %s away: %d strangers wait already", address[0], MOST_STRANGERS)
                sock.close()
                continue
            call = _Call(self, sock, f"{address[0]}:{address[1]}")
            with self._lock:
                self._calls.add(call)
            call.thread.start()

    def _admit(self, call: _Call) -> tuple[Service, Peer] | None:
        """The service and the peer, when the caller could prove itself; frees the stranger's place in any case."""
        try:
            tune(call.sock)
            asked, name = proof.challenge(call.sock, self._secret)
        except (NotAllowed, OSError, ValueError) as refused:
            if not self._closing.is_set():
                _log.warning("a caller from %s was not let in: %s", call.address, refused)
            return None
        finally:
            self._strangers.release()
        call.sock.settimeout(None)
        if asked.startswith(FURTHER):
            self._join(call, asked[len(FURTHER) :], name)
            return None
        service = self.services.get(asked)
        if service is None:
            known = sorted(self.services)
            with suppress(OSError):
                frames.send(call.sock, tell(UnknownName("service", asked, known, nearest(asked, known))))
            return None
        self.seen.add(name)
        return service, Peer(name, next(self._numbers), call.address)

    def _join(self, further: _Call, token: str, name: str) -> None:
        """Gives the socket to the link whose token the caller was told."""
        with self._lock:
            call = self._tokens.get(token)
        if call is None or call.peer is None or call.peer.name != name:
            _log.warning("a further socket of %s, from %s, belongs to no link", name, further.address)
            return
        with suppress(OSError):
            call.bulk.add(further.sock)
            further.given_away = True
            frames.send(further.sock, WELCOME)

    def _promise(self, call: _Call) -> Meta:
        token = secrets.token_hex(8)
        with self._lock:
            self._tokens[token] = call
        call.token = token
        return {**WELCOME, "token": token}

    def _forget(self, call: _Call) -> None:
        with self._lock:
            self._calls.discard(call)
            self._tokens.pop(call.token, None)


class _Call:
    """One connection and the thread that serves it."""

    def __init__(self, host: Host, sock: socket.socket, address: str) -> None:
        self.host, self.sock, self.address = host, sock, address
        self.peer: Peer | None = None
        self.bulk = Bulk()
        self.token = ""
        self.given_away = False  # the socket belongs to another call
        self.busy = False  # a service works at an ask
        self._service: Service | None = None
        self._told = False  # the service knows that the peer left
        self._lock = threading.Lock()
        self.thread = threading.Thread(target=self._run, name=f"shoal-call-{address}", daemon=True)

    def hang_up(self) -> None:
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.bulk.close()
        self.tell_left()

    def tell_left(self) -> None:
        """Tells the service that the peer is gone, once."""
        with self._lock:
            if self._told or self._service is None or self.peer is None:
                return
            self._told = True
        try:
            self._service.left(self.peer)
        except Exception:
            _log.exception("what follows when %s leaves went wrong", self.peer.name)

    def _run(self) -> None:
        try:
            admitted = self.host._admit(self)
            if admitted:
                self._service, self.peer = admitted
                self.host._watch.add(self)
                self._serve(*admitted)
        finally:
            self.host._watch.drop(self)
            self.tell_left()
            self.bulk.close()
            if not self.given_away:
                self.sock.close()
            self.host._forget(self)

    def _serve(self, service: Service, peer: Peer) -> None:
        try:
            frames.send(self.sock, self.host._promise(self))
            while True:
                refused: list[ShoalError] = []
                meta, payload = frames.receive(self.sock, _placing(service, peer, refused), self.bulk)
                self.busy = True
                with self._lock:
                    if self._told:
                        return
                answer, parts = (tell(refused[0]), ()) if refused else self._answer(service, peer, meta, payload)
                self.busy = False
                frames.send(self.sock, answer, parts, self.bulk)
                del meta, payload, answer, parts  # what they hold on to may be large, and the next ask far away
        except Ended as ended:
            if not ended.clean:
                _log.warning("%s was cut off: %s", peer.name, ended)
        except OSError as failed:
            if not self.host._closing.is_set():
                _log.warning("lost %s: %s", peer.name, failed)
        except Exception:
            _log.exception("the connection of %s ends", peer.name)

    @staticmethod
    def _answer(service: Service, peer: Peer, meta: Meta, payload: memoryview) -> Answer:
        try:
            return service.handle(peer, meta, payload)
        except ShoalError as error:
            return tell(error), ()
        except Exception as error:
            _log.exception("%s asked for %r, which went wrong", peer.name, meta.get("kind"))
            return tell(error), ()


def _placing(service: Service, peer: Peer, refused: list[ShoalError]) -> frames.Place:
    """Where the service wants a payload. One that it wants nowhere is received all the same, to be answered."""

    def place(meta: Meta, size: int) -> memoryview | None:
        try:
            return service.buffer(peer, meta, size)
        except ShoalError as error:
            refused.append(error)
            return None

    return place


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. A server that comes back must get its port although old connections linger on it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
