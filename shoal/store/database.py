"""The connections: how a short transaction is read from and written to SQLite or PostgreSQL.

SQLite has one writer at a time. Threads of this process queue for it on a lock, which wakes them in turn, instead of
spinning on the file's; other processes wait up to BUSY_SECONDS. Readers have connections of their own and, with the
write-ahead log, never wait. PostgreSQL locks rows, so there everyone uses one pool.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from shoal.errors import MissingExtra, StoreError
from shoal.store.faults import explain

BUSY_SECONDS = 10.0
# What the address itself sets wins. A database that vanished without a word is noticed within a minute.
_PATIENCE = {
    "connect_timeout": 10,  # seconds
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 50_000,  # milliseconds
}
KEPT_CONNECTIONS = 8
MOST_CONNECTIONS = 48  # more than the server has threads
_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -4000",
    "PRAGMA journal_size_limit = 67108864",
)


@dataclass(frozen=True)
class Database:
    """`where` names it in messages, without its password. Use `read` and `write`; a transaction does no other I/O."""

    where: str
    dialect: str
    path: Path | None
    _reader: Engine
    _writer: Engine
    _safe_writer: Engine
    _turn: AbstractContextManager[Any]

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection that sees one state of the database on SQLite, the newest at each statement on PostgreSQL."""
        try:
            with self._reader.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise explain(error, self.where) from error

    @contextmanager
    def write(self, safe: bool = False) -> Iterator[Connection]:
        """One transaction: saved whole on leaving, not at all on an exception.

        `safe` survives a power cut as well: SQLite syncs its log before this returns. Without it the last moments of
        a job's life could be lost with the power, and with the job's processes; a crash of the server loses nothing.
        """
        try:
            with self._turn, (self._safe_writer if safe else self._writer).begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise explain(error, self.where) from error

    def close(self) -> None:
        for engine in (self._reader, self._safe_writer, self._writer):
            engine.dispose()


def connect(url: str, create: bool = True) -> Database:
    """Connects lazily; what can be said about the address without a connection is said here."""
    address = _parse(url)
    if address.get_backend_name() == "sqlite":
        return _sqlite(address, create)
    if address.get_backend_name() == "postgresql":
        return _postgresql(address)
    raise StoreError(f"the database address {_shown(address)} is of no kind Shoal knows; {_KINDS}")


_KINDS = "write sqlite:////absolute/path/home.db or postgresql+psycopg://USER@HOST/DATABASE"


def _parse(url: str) -> URL:
    try:
        address = make_url(url)
        if address.drivername == "postgresql":
            address = address.set(drivername="postgresql+psycopg")
        return address
    except (ArgumentError, ValueError):
        raise StoreError(f"{url.rpartition('@')[2]!r} is not the address of a database; {_KINDS}") from None


def _shown(address: URL) -> str:
    """Without what it may hold of secrets, also behind the question mark."""
    return address.set(query={}).render_as_string(hide_password=True)


def _sqlite(address: URL, create: bool) -> Database:
    if not address.database or address.database == ":memory:":
        raise StoreError(f"the database address {_shown(address)} names no file; {_KINDS}")
    path = Path(address.database).absolute()
    _prepare_file(path, create)
    reader = _sqlite_engine(path, "BEGIN", "NORMAL", KEPT_CONNECTIONS, MOST_CONNECTIONS - KEPT_CONNECTIONS)
    writer = _sqlite_engine(path, "BEGIN IMMEDIATE", "NORMAL", 1, 0)
    safe_writer = _sqlite_engine(path, "BEGIN IMMEDIATE", "FULL", 1, 0)
    return Database(str(path), "sqlite", path, reader, writer, safe_writer, threading.Lock())


def _prepare_file(path: Path, create: bool) -> None:
    """An owner-only file: it holds password hashes and the server's secret."""
    if path.is_dir():
        raise StoreError(f"the database {path} is a folder, not a file; name a file in it, such as {path / 'home.db'}")
    if path.exists():
        return
    if not create:
        raise StoreError(f"there is no database {path}; start a server on this home first: 'shoal server start'")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise StoreError(
            f"the database {path} cannot be created ({error.strerror}); make its folder, or set another SHOAL_HOME",
            where=str(path),
        ) from error


def _sqlite_engine(path: Path, begin: str, synchronous: str, kept: int, more: int) -> Engine:
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        poolclass=QueuePool,
        pool_size=kept,
        max_overflow=more,
        hide_parameters=True,  # an error's text goes to the log, and parameters hold variables of jobs and secrets
        connect_args={"timeout": BUSY_SECONDS, "isolation_level": None, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def prepare(connection: Any, _: Any) -> None:
        for pragma in (*_PRAGMAS, f"PRAGMA synchronous = {synchronous}"):
            connection.execute(pragma)

    # The driver would begin late and deferred; two writers could then deadlock half-way, at their first write.
    @event.listens_for(engine, "begin")
    def start(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _postgresql(address: URL) -> Database:
    try:
        engine = create_engine(
            address,
            pool_size=KEPT_CONNECTIONS,
            max_overflow=MOST_CONNECTIONS - KEPT_CONNECTIONS,
            pool_pre_ping=True,
            hide_parameters=True,
            connect_args={name: value for name, value in _PATIENCE.items() if name not in address.query},
        )
    except (ModuleNotFoundError, NoSuchModuleError):
        raise MissingExtra("database", "postgresql", "psycopg", "postgres") from None
    reader = engine.execution_options(isolation_level="AUTOCOMMIT")
    return Database(_shown(address), "postgresql", None, reader, engine, engine, nullcontext())
