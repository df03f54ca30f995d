"""Every error Shoal raises on purpose: one tree, stable codes, facts as attributes.

ShoalError
├── BadSpec                 a job that cannot be: wrong key, value, bound (400)
│   └── UnknownName         no plug-in, size, key … of that name; carries the nearest
├── NotServed               a known key that no engine here serves yet (400)
├── DoesNotFit              asks for more than the nodes have (400)
├── MissingExtra            a plug-in's dependency is not installed (501)
├── NotFound                no such job, user, file … or not yours (404)
├── NotAllowed              signed in, but not permitted (403)
├── NotSignedIn             no token, or one that is wrong or revoked (401)
│   └── TokenExpired        a token whose time is over
├── TooManyTries            too many wrong passwords in a short time; carries how long to wait (429)
├── BadRequest              a request that cannot be read: wrong JSON, parameter, header (400)
├── TooLarge                a body over its limit (413)
├── DiskFull                no room left where the server keeps its things (507)
├── BadConfig               config.toml or a flag of the server that cannot be
├── Conflict                not in this state; a name that is taken (409)
│   ├── OffsetGap           a log piece that does not join on; carries the expected offset
│   ├── MissingChunks       a manifest that names chunks that never came
│   └── LeaseLost           another server acts now
├── BadChunk                content that does not match its name (400)
├── StartFailed             the engine could not start the gang
├── GangOver                the gang has ended or never was (410)
├── StoreError              the database is read-only, newer, locked, out of reach (503)
├── ServerAway              no server answers (client side)
└── ServerRunning           a second server on the same home; carries the first one's address

A message has three parts: what happened, with which value, what to do next.
"""

from __future__ import annotations

from typing import Any, Sequence


class ShoalError(Exception):
    """Root of the tree. `code` is stable; `facts` travel in the problem document."""

    code = "error"
    status = 500

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts


class BadSpec(ShoalError):
    """A job that cannot be. `problems` holds one {field, value, message} per fault, so that every door can show all."""

    code = "bad_spec"
    status = 400

    def __init__(self, message: str, problems: Sequence[dict[str, Any]] = (), **facts: Any) -> None:
        super().__init__(message, problems=list(problems), **facts)
        self.problems = list(problems)


class UnknownName(BadSpec):
    code = "unknown_name"

    def __init__(self, family: str, name: str, known: Sequence[str], near: str | None) -> None:
        hint = f"did you mean {near!r}?" if near else f"known: {', '.join(known) or 'none'}"
        super().__init__(f"no {family} is called {name!r}; {hint}", family=family, name=name, nearest=near)


class NotServed(ShoalError):
    code = "not_served"
    status = 400


class DoesNotFit(ShoalError):
    code = "does_not_fit"
    status = 400


class MissingExtra(ShoalError):
    code = "missing_extra"
    status = 501

    def __init__(self, family: str, name: str, module: str, extra: str | None) -> None:
        fix = f"pip install 'shoal[{extra}]'" if extra else f"pip install {module}"
        super().__init__(f"{family} {name!r} needs the module {module!r}, which is not installed; run: {fix}", fix=fix)


class NotFound(ShoalError):
    code = "not_found"
    status = 404


class NotAllowed(ShoalError):
    code = "not_allowed"
    status = 403


class NotSignedIn(ShoalError):
    code = "not_signed_in"
    status = 401


class TokenExpired(NotSignedIn):
    code = "token_expired"


class TooManyTries(ShoalError):
    code = "too_many_tries"
    status = 429

    def __init__(self, message: str, wait: float) -> None:
        super().__init__(message, wait=wait)
        self.wait = wait


class BadRequest(ShoalError):
    code = "bad_request"
    status = 400


class TooLarge(ShoalError):
    code = "too_large"
    status = 413


class DiskFull(ShoalError):
    code = "disk_full"
    status = 507


class BadConfig(ShoalError):
    code = "bad_config"


class Conflict(ShoalError):
    code = "conflict"
    status = 409


class OffsetGap(Conflict):
    code = "offset_gap"

    def __init__(self, stream: str, offset: int, expected: int) -> None:
        super().__init__(f"log {stream} continues at {expected}, not {offset}; send from {expected}", expected=expected)
        self.expected = expected


class MissingChunks(Conflict):
    code = "missing_chunks"

    def __init__(self, digests: Sequence[str]) -> None:
        super().__init__(
            f"{len(digests)} chunks of the manifest were never uploaded; send them and try again",
            digests=list(digests),
        )
        self.digests = list(digests)


class LeaseLost(Conflict):
    code = "lease_lost"


class BadChunk(ShoalError):
    code = "bad_chunk"
    status = 400


class StartFailed(ShoalError):
    code = "start_failed"


class GangOver(ShoalError):
    code = "gang_over"
    status = 410


class StoreError(ShoalError):
    code = "store"
    status = 503


class ServerAway(ShoalError):
    code = "server_away"


class ServerRunning(ShoalError):
    code = "server_running"

    def __init__(self, url: str, pid: int | None = None) -> None:
        super().__init__(
            f"a server already runs on this home at {url}; "
            "use it, stop it with 'shoal server stop', or set another SHOAL_HOME",
            url=url,
            pid=pid,
        )
        self.url = url


def by_code(code: str) -> type[ShoalError]:
    """The class for a code that came over the wire; ShoalError for one this version does not know."""
    pending: list[type[ShoalError]] = [ShoalError]
    while pending:
        kind = pending.pop()
        if kind.__dict__.get("code") == code:
            return kind
        pending.extend(kind.__subclasses__())
    return ShoalError
