"""The server process in the foreground: takes the home's lock, opens everything, listens, ends cleanly on SIGTERM."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import uvicorn
import uvloop

import shoal
from shoal._lib import clock
from shoal.control import Bell, Parts
from shoal.engine import ENGINES, Engine
from shoal.engine.apart import Apart
from shoal.errors import ServerRunning
from shoal.home import Home, ServerNote
from shoal.job.plan import Served
from shoal.launch import LAUNCHERS
from shoal.server.app import build_app
from shoal.server.binding import Listener, listen
from shoal.server.journal import open_journal
from shoal.server.lock import HomeLock, holder_of
from shoal.server.owner import ensure_owner
from shoal.server.protocol import BoundedHttp
from shoal.server.service import Service
from shoal.server.settings import ServerSettings, Settings, read_settings
from shoal.server.tls import LOOPBACK, Certificate, is_loopback, own_certificate, self_signed
from shoal.storage.blobs import FolderBlobs
from shoal.storage.chunks import Chunks
from shoal.storage.logs import LogStore
from shoal.store import Store

KEEP_ALIVE = 75  # seconds; longer than the pause between two beats
BACKLOG = 4096
LAST_MOMENT = 1.7  # seconds from SIGTERM until the process ends whatever still hangs; nothing is lost by it
OPEN_FILES = 65536


def serve(home: Home, flags: Mapping[str, Any]) -> None:
    """Runs until SIGTERM or SIGINT. ServerRunning when another server has this home; BadConfig, StoreError …"""
    home.create()
    lock = HomeLock(home.lock_file)
    if not lock.take():
        raise _already(home)
    try:
        settings = read_settings(home, flags)
        open_journal(home.server_log)
        _allow_many_files()
        listener = listen(settings.server.host, settings.server.port, home)
        certificate = choose_certificate(home, settings.server)
        service = build_service(home, settings, listener.url(certificate is not None), certificate)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(service, listener, certificate))
    finally:
        lock.release()


def _already(home: Home) -> ServerRunning:
    note = home.read_note()
    return ServerRunning(note.url if note else "an address it has not told yet", holder_of(home.lock_file))


def choose_certificate(home: Home, settings: ServerSettings) -> Certificate | None:
    """None for plain HTTP: only on loopback, or where an administrator said that a proxy stands in front."""
    if settings.tls_cert and settings.tls_key:
        return own_certificate(settings.tls_cert, settings.tls_key, settings.host)
    if settings.behind_proxy or is_loopback(settings.host):
        return None
    return self_signed(home.root / "tls", settings.host)


def build_service(home: Home, settings: Settings, url: str, certificate: Certificate | None) -> Service:
    store = Store.open(settings.server.database or f"sqlite:///{home.database}")
    ensure_owner(home, store)
    apart = Apart(home, settings.isolation.rules(), lambda: len(store.users()))
    apart.check()  # what was asked for and cannot be had is said now, not by the first job
    engine = _engine(home, settings.server, apart)
    parts = Parts(
        store=store,
        chunks=Chunks(FolderBlobs(home.blobs)),
        logs=LogStore(home.logs),
        home=home,
        engines={engine.name: engine},
        default_engine=engine.name,
        url=url,
        fingerprint=certificate.fingerprint if certificate else None,
        environments_room=settings.server.environments,
        served=Served(frameworks=tuple(LAUNCHERS.names()), engines=(engine.name,), sizes=settings.sizes),
        bell=Bell(),
        apart=apart,
    )
    return Service(parts, settings, shoal.__version__)


def _engine(home: Home, settings: ServerSettings, apart: Apart) -> Engine:
    make: Callable[..., Engine] = ENGINES.load(settings.engine)
    return make(
        home,
        nodes=settings.nodes,
        cpus=settings.cpus,
        memory=settings.memory,
        gpus=settings.gpus,
        shares=settings.shares,
        labels=settings.labels,
        apart=apart,
    )


def _allow_many_files() -> None:
    """Thousands of shepherds hold a connection each; the usual soft limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _run(service: Service, listener: Listener, certificate: Certificate | None) -> None:
    behind_proxy = service.settings.server.behind_proxy
    config = uvicorn.Config(
        build_app(service, allowed_hosts(listener, behind_proxy)),
        http=BoundedHttp,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=behind_proxy,
        forwarded_allow_ips="*" if behind_proxy else "",
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=1,
        ssl_certfile=certificate.cert if certificate else None,
        ssl_keyfile=certificate.key if certificate else None,
    )
    server = _Server(config, service, lambda: _announce(service, listener, certificate))
    await service.start()
    try:
        await server.serve(sockets=[listener.socket])
    finally:
        await service.stop()


def allowed_hosts(listener: Listener, behind_proxy: bool) -> frozenset[str] | None:
    """The names a loopback server answers to; None for any, where others decide who reaches it."""
    if behind_proxy or not is_loopback(listener.host):
        return None
    shown = [f"[{name}]" if ":" in name else name for name in (*LOOPBACK, listener.host.lower())]
    return frozenset(shown)


def _announce(service: Service, listener: Listener, certificate: Certificate | None) -> None:
    """Only now that it listens: whoever finds the note can connect."""
    parts = service.parts
    parts.home.write_note(ServerNote(parts.url, os.getpid(), service.version, clock.now(), parts.fingerprint))
    print(f"Shoal {service.version} listens at {parts.url}; home {parts.home.root}, log {parts.home.server_log}")
    print(f"Note: {parts.isolation().note}.")
    if certificate is not None and certificate.fingerprint:
        print(f"Certificate {certificate.cert}, SHA-256 fingerprint {certificate.fingerprint}")
    if listener.warning:
        print(f"Warning: {listener.warning}", file=sys.stderr)
    sys.stdout.flush()


class _Server(uvicorn.Server):
    """uvicorn, with a word when it listens and an end that is quick and has status 0."""

    def __init__(self, config: uvicorn.Config, service: Service, listening: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._listening = listening
        self._loop = asyncio.get_running_loop()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listening()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A second Ctrl-C changes nothing: the first one ends in under two seconds in any case."""
        if self.should_exit:
            return
        self.should_exit = True
        self._loop.call_soon_threadsafe(self._service.end_streams)
        last = threading.Timer(LAST_MOMENT, os._exit, (0,))
        last.daemon = True
        last.start()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
