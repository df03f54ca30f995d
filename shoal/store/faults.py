"""What the databases' own errors mean for a user: what happened, where, what to do next."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from shoal.errors import StoreError

# By the beginning of SQLite's error name, longest first where one begins like another.
_SQLITE = {
    "SQLITE_READONLY": ("cannot be written", "make the file and its folder writable for this user"),
    "SQLITE_NOTADB": ("is not a SQLite database", "move that file away or name another database, then start again"),
    "SQLITE_CORRUPT": ("is damaged", "stop the server and put back a backup of the file"),
    "SQLITE_FULL": ("has no room left to grow", "free room on its disk; what was not saved was refused whole"),
    "SQLITE_BUSY": ("is locked by another process", "end the program that holds it open, then try again"),
    "SQLITE_LOCKED": ("is locked by another process", "end the program that holds it open, then try again"),
    "SQLITE_CANTOPEN": ("cannot be opened", "check that its folder exists and that this user may write there"),
    "SQLITE_PERM": ("cannot be opened", "give this user the right to read and write it"),
    "SQLITE_AUTH": ("cannot be opened", "give this user the right to read and write it"),
    "SQLITE_IOERR": ("could not be read or written", "check its disk: 'shoal doctor' shows its room and health"),
    "SQLITE_PROTOCOL": ("is locked by another process", "end the program that holds it open, then try again"),
}

# By the beginning of PostgreSQL's SQLSTATE.
_POSTGRESQL = {
    "53100": ("has no room left to grow", "free room on the database server's disk"),
    "53": ("is out of connections or memory", "raise its limits (max_connections), or run fewer servers on it"),
    "25006": ("is read-only", "name the primary server, not a replica, and check default_transaction_read_only"),
    "28": ("refused the user or password", "check the user and the password in the database's address"),
    "3D000": ("does not exist", "create it with 'createdb', then start again"),
    "42501": ("does not let this user do that", "grant the user all rights on the database and its schema"),
    "57": ("is being shut down", "wait until it is back; the server tries again by itself"),
    "40": ("could not order two changes", "try again; nothing of this one was saved"),
    "08": ("cannot be reached", "check that PostgreSQL runs and that its address is right"),
    "XX": ("is damaged", "look at the database server's log and put back a backup"),
}
_AWAY = ("cannot be reached", "check that PostgreSQL runs and that its address, port and firewall are right")


def explain(error: SQLAlchemyError, where: str) -> SQLAlchemyError | StoreError:
    """The StoreError for a fault of the world; a fault of ours (a wrong statement) comes back as it is."""
    if isinstance(error, PoolTimeout):
        return StoreError(
            f"the database {where} has no free connection for this request; try again, or run fewer requests at once"
        )
    if not isinstance(error, DBAPIError):
        return error
    cause = _cause(error)
    if cause is None:
        return error
    what, then = cause
    said = str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__
    return StoreError(f"the database {where} {what} ({said}); {then}", where=where)


def _cause(error: DBAPIError) -> tuple[str, str] | None:
    name = getattr(error.orig, "sqlite_errorname", None)
    if name is not None:
        return _longest(_SQLITE, name)
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return _longest(_POSTGRESQL, state)
    return _refusal(error.orig) if type(error.orig).__module__.startswith("psycopg") else None


def _refusal(error: BaseException | None) -> tuple[str, str] | None:
    """A connection that was never made, or broke, has no SQLSTATE; what the server said, if it did, is in the text."""
    if type(error).__name__ not in _CONNECTION_FAULTS:
        return None
    said = str(error)
    return next((_POSTGRESQL[state] for words, state in _REFUSALS.items() if words in said), _AWAY)


_CONNECTION_FAULTS = frozenset({"OperationalError", "ConnectionTimeout", "InterfaceError"})
_REFUSALS = {
    "authentication failed": "28",
    "no password supplied": "28",
    "pg_hba.conf": "28",
    "FATAL:  role ": "28",
    "FATAL:  database ": "3D000",
    "too many": "53",
    "connection slots": "53",
    "shutting down": "57",
    "starting up": "57",
}


def _longest(table: dict[str, tuple[str, str]], code: str) -> tuple[str, str] | None:
    matching = [prefix for prefix in table if code.startswith(prefix)]
    return table[max(matching, key=len)] if matching else None
