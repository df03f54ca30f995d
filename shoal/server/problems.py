"""How an error looks on the wire: RFC 9457 problem documents with Shoal's stable codes.

Whatever goes wrong becomes one of the errors of `shoal.errors` first; what nobody foresaw becomes a 500 with an
incident number, and its traceback goes to the log only.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

from shoal._lib.ids import short_id
from shoal.errors import BadRequest, DiskFull, NotFound, NotSignedIn, ShoalError, StoreError, TooManyTries

MEDIA_TYPE = "application/problem+json"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_FULL_DATABASE = ("database or disk is full", "has no room left to grow")

log = logging.getLogger("shoal.server")


class Incident(ShoalError):
    """Something nobody foresaw; the log has the traceback under the same number."""

    code = "internal"

    def __init__(self, incident: str) -> None:
        super().__init__(
            f"the server failed with something unforeseen, incident {incident}; its log says more", incident=incident
        )


class NotAnswered(ShoalError):
    """What the framework refuses by itself, such as a method that a route does not have."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = HTTPStatus(status).phrase.lower().replace(" ", "_")


def document(error: ShoalError) -> dict[str, Any]:
    return {
        **error.facts,
        "type": "about:blank",
        "title": HTTPStatus(error.status).phrase,
        "status": error.status,
        "detail": error.message,
        "code": error.code,
    }


def body_of(error: ShoalError) -> bytes:
    return to_json(document(error), inf_nan_mode="null", fallback=str)


def headers_of(error: ShoalError) -> dict[str, str]:
    if isinstance(error, NotSignedIn):
        return {"www-authenticate": "Bearer"}
    if isinstance(error, TooManyTries):
        return {"retry-after": str(int(error.wait) + 1)}
    if error.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        # The rest of the body is still under way: the connection cannot be used again.
        return {"connection": "close"}
    return {}


def answer(error: ShoalError) -> Response:
    return Response(body_of(error), error.status, headers_of(error), MEDIA_TYPE)


def explain(wrong: Exception) -> ShoalError:
    """The error to answer with, whatever was raised. Logs what nobody foresaw."""
    if isinstance(wrong, ShoalError) and not isinstance(wrong, StoreError):
        return wrong
    if isinstance(wrong, RequestValidationError):
        return _unreadable(wrong.errors())
    if isinstance(wrong, HTTPException):
        return _refused(wrong)
    if _is_disk_full(wrong):
        log.error("no room left", exc_info=wrong)
        return DiskFull("the server has no room left on its disk; free some where SHOAL_HOME lies and try again")
    if isinstance(wrong, StoreError):
        log.error("the database: %s", wrong.message)
        return wrong
    incident = Incident(short_id(8))
    log.error("incident %s", incident.facts["incident"], exc_info=wrong)
    return incident


def _refused(wrong: HTTPException) -> ShoalError:
    # FastAPI wraps what is raised while it reads the body; the cause is the truth.
    if isinstance(wrong.__cause__, ShoalError):
        return wrong.__cause__
    if wrong.status_code == HTTPStatus.NOT_FOUND:
        return NotFound("there is nothing at this address; see /openapi.json for what there is")
    if wrong.status_code == HTTPStatus.BAD_REQUEST:
        return BadRequest(f"the request cannot be read: {wrong.detail}")
    return NotAnswered(wrong.status_code, str(wrong.detail))


def _unreadable(faults: Sequence[Any]) -> BadRequest:
    said = [
        (".".join(map(str, fault["loc"])), str(fault["msg"]).removeprefix("Value error, ")) for fault in faults[:20]
    ]
    problems = [{"field": field, "message": message} for field, message in said]
    lines = "; ".join(f"{problem['field']}: {problem['message']}" for problem in problems)
    return BadRequest(f"the request cannot be read: {lines}", problems=problems)


def _is_disk_full(wrong: BaseException | None) -> bool:
    """A full disk, however deep it is wrapped: databases say it in words only."""
    while wrong is not None:
        if isinstance(wrong, OSError) and wrong.errno in _NO_ROOM:
            return True
        if any(words in str(wrong) for words in _FULL_DATABASE):
            return True
        wrong = wrong.__cause__ or wrong.__context__
    return False
