"""The tables, as SQLAlchemy Core sees them: one definition for SQLite and PostgreSQL.

Times are seconds since the epoch, JSON is text. Names and paths compare by bytes on both databases, so that a prefix
is a range of the index. What a list of jobs shows lies in `jobs`; the specification, which is long and read only for
one job at a time, lies in `specs`.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

# Names for every constraint: a later migration can only change what it can name.
metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

WORD = Text().with_variant(Text(collation="C"), "postgresql")
SERIAL = BigInteger().with_variant(Integer(), "sqlite")  # SQLite counts up only what is called INTEGER


class database_now(FunctionElement[float]):  # noqa: N801 - reads as the SQL function it is
    """The database's own clock, in seconds: the one clock that all servers on it share."""

    type = Double()
    inherit_cache = True
    name = "database_now"


@compiles(database_now, "sqlite")
def _sqlite_now(element: Any, compiler: Any, **kw: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(database_now, "postgresql")
def _postgresql_now(element: Any, compiler: Any, **kw: Any) -> str:
    return "CAST(extract(epoch from clock_timestamp()) AS DOUBLE PRECISION)"


def _word(name: str, *more: Any, **options: Any) -> Column[str]:
    return Column(name, WORD, *more, **{"nullable": False, **options})


def _text(name: str, **options: Any) -> Column[str]:
    return Column(name, Text(), **{"nullable": False, **options})


def _number(name: str, default: int | None = None, **options: Any) -> Column[int]:
    preset = {} if default is None else {"server_default": text(str(default))}
    return Column(name, BigInteger(), **{"nullable": False, **preset, **options})


def _moment(name: str, **options: Any) -> Column[float]:
    return Column(name, Double(), **{"nullable": True, **options})


def _flag(name: str) -> Column[bool]:
    return Column(name, Boolean(), nullable=False, server_default=text("false"))


def _serial() -> Column[int]:
    return Column("seq", SERIAL, primary_key=True, autoincrement=True)


def _job() -> Column[str]:
    return _word("job_id", ForeignKey("jobs.id", ondelete="CASCADE"))


def _gang(**options: Any) -> Column[str]:
    return _word("key", ForeignKey("attempts.key", ondelete="CASCADE"), **options)


meta = Table("meta", metadata, _word("name", primary_key=True), _text("value"))

jobs = Table(
    "jobs",
    metadata,
    _serial(),
    _word("id", unique=True),
    _word("owner"),
    _word("project"),
    _word("name"),
    _word("submit_key", nullable=True),
    _word("state"),
    _word("reason"),
    _text("message"),
    _text("framework"),
    _text("strategy", nullable=True),
    _text("tags"),  # separated by blanks, for display; `tags` the table is for finding
    _number("workers"),
    _number("turn"),  # the priority, turned round: smaller goes first, as the smaller seq does
    _number("exit_code", nullable=True),
    _number("attempt"),
    _number("retries_used"),
    _moment("created_at", nullable=False),
    _moment("not_before"),
    _moment("placed_at"),
    _moment("started_at"),
    _moment("stopping_at"),
    _moment("ended_at"),
    _text("outcome", nullable=True),
    _moment("stop_grace"),
    _flag("overran"),
    _text("manifest", nullable=True),
    _text("in_place", nullable=True),
    _number("version", 1),
    UniqueConstraint("owner", "submit_key"),
    Index("ix_jobs_owner_seq", "owner", "seq"),
    Index("ix_jobs_state_seq", "state", "seq"),
    Index("ix_jobs_project_seq", "project", "seq"),
    Index("ix_jobs_name_seq", "name", "seq"),
    Index("ix_jobs_queue", "turn", "seq", sqlite_where=text("state = 'queued'"),
          postgresql_where=text("state = 'queued'")),
    sqlite_autoincrement=True,
)  # fmt: skip

specs = Table(
    "specs",
    metadata,
    _word("job_id", ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    _text("spec"),
)

origins = Table(
    "origins",
    metadata,
    _word("job_id", ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    _text("origin"),
    _text("diff", nullable=True),  # apart: it may be long, and is read only when asked for
)

tags = Table(
    "tags",
    metadata,
    _word("tag", primary_key=True),
    Column("seq", BigInteger(), ForeignKey("jobs.seq", ondelete="CASCADE"), primary_key=True, index=True),
)

events = Table(
    "events",
    metadata,
    _serial(),
    _job(),
    _moment("at", nullable=False),
    _text("kind"),
    _text("reason"),
    _text("message"),
    _text("data", nullable=True),
    Index("ix_events_job_id_seq", "job_id", "seq"),
    sqlite_autoincrement=True,
)

attempts = Table(
    "attempts",
    metadata,
    _word("key", primary_key=True),
    _job(),
    _number("number"),
    _text("placement"),
    _text("handle", nullable=True),
    _moment("created_at", nullable=False),
    _moment("complete_at"),
    _moment("ended_at"),
    _text("reason", nullable=True),
    _text("message"),
    _number("exit_code", nullable=True),
    _number("roster_version", 0),
    _number("nodes"),
    _number("joined", 0),  # nodes that have; counted here so that the last of 5,000 needs no scan
    _number("done", 0),
    _moment("progress"),
    _number("changes", 0),
    UniqueConstraint("job_id", "number"),
    Index("ix_attempts_open", "key", sqlite_where=text("ended_at IS NULL"), postgresql_where=text("ended_at IS NULL")),
)

shepherds = Table(
    "shepherds",
    metadata,
    _gang(primary_key=True),
    _word("node", primary_key=True),
    _text("address"),
    _text("host"),
    _text("ports"),
    _number("pid", nullable=True),
    _moment("joined_at", nullable=False),
    _moment("last_seen", nullable=False),
    _moment("done_at"),
    _number("last_event", 0),
)

records = Table(
    "records",
    metadata,
    _gang(primary_key=True),
    _word("node", primary_key=True),
    _text("record"),
)

inputs = Table(
    "inputs",
    metadata,
    _gang(primary_key=True),
    _word("name", primary_key=True),
    _text("digest"),
    _number("files"),
    _number("bytes"),
    _flag("mixed"),  # nodes of one attempt were given different content
)

ranks = Table(
    "ranks",
    metadata,
    _gang(primary_key=True),
    _word("name", primary_key=True),
    _number("ordinal"),  # the order in which the gang was placed
    _word("role"),
    _number("number"),
    _number("slot"),
    _word("node"),
    _number("local"),
    _text("state"),
    _number("incarnation", 0),
    _number("pid", nullable=True),
    _number("exit_code", nullable=True),
    _number("signal", nullable=True),
    _flag("oom"),
    _flag("failed_start"),
    _text("message", server_default=text("''")),
    _text("tail", server_default=text("''")),
    _text("progress", server_default=text("'{}'")),
    _moment("fraction"),
    _moment("progress_at"),
    _moment("started_at"),
    _moment("ended_at"),
    Index("ix_ranks_key_node", "key", "node"),
    Index("ix_ranks_key_fraction", "key", "fraction"),
)

directives = Table(
    "directives",
    metadata,
    _serial(),
    _gang(),
    _word("node", nullable=True),  # none: every node of the gang
    _text("kind"),
    _text("data"),
    _moment("at", nullable=False),
    Index("ix_directives_key_seq", "key", "seq"),
    sqlite_autoincrement=True,
)

leases = Table(
    "leases",
    metadata,
    _word("name", primary_key=True),
    _text("holder"),
    _number("token"),
    _moment("until", nullable=False),
)

users = Table(
    "users",
    metadata,
    _word("name", primary_key=True),
    _flag("admin"),
    _text("password_hash", nullable=True),
    _moment("created_at", nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    _word("id", primary_key=True),
    _word("user", ForeignKey("users.name", ondelete="CASCADE"), index=True),
    _text("secret_hash"),
    _text("label"),
    _moment("created_at", nullable=False),
    _moment("expires_at"),
)

manifests = Table(
    "manifests", metadata, _word("owner", primary_key=True), _word("digest", primary_key=True), _text("content")
)

pool_files = Table(
    "pool_files",
    metadata,
    _word("owner", primary_key=True),
    _word("path", primary_key=True),
    _text("entry"),
    _moment("changed_at", nullable=False),
)

webhooks = Table(
    "webhooks",
    metadata,
    _word("owner", primary_key=True),
    _text("url"),
    _text("secret"),
    _text("kinds"),
    _moment("created_at", nullable=False),
)

deliveries = Table(
    "deliveries",
    metadata,
    _serial(),
    _word("owner"),
    _text("kind"),
    _text("payload"),
    _moment("created_at", nullable=False),
    _number("tries", 0),
    _moment("next_at"),  # none: delivered, or given up
    _moment("delivered_at"),
    _number("status", nullable=True),
    _text("error", nullable=True),
    _moment("tried_at"),
    Index("ix_deliveries_owner_seq", "owner", "seq"),
    Index("ix_deliveries_next_at", "next_at"),
    sqlite_autoincrement=True,
)
