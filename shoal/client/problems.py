"""An answer that says no, as the exception it stands for."""

from __future__ import annotations

from typing import Any

from shoal import errors
from shoal.client.wire import httpx

_DOCUMENT = frozenset({"type", "title", "status", "detail", "code", "instance"})
_BY_STATUS = {401: "not_signed_in", 403: "not_allowed", 404: "not_found", 409: "conflict"}
AWAY = frozenset({502, 503, 504})  # what a proxy says while the server behind it restarts


def is_problem(response: httpx.Response) -> bool:
    return str(response.headers.get("content-type", "")).startswith("application/problem+json")


def error_of(response: httpx.Response) -> errors.ShoalError:
    """The exception of an answer of 400 or above; its body must have been read."""
    try:
        body = response.json()
    except ValueError:
        body = None
    if isinstance(body, dict) and isinstance(body.get("code"), str):
        return from_problem(body, response.status_code)
    return _plain(response, body)


def from_problem(body: dict[str, Any], status: int) -> errors.ShoalError:
    """The class by its code, facts as attributes; made without its constructor, as the server chose the words."""
    kind = errors.by_code(body["code"])
    error = kind.__new__(kind)
    message = str(body.get("detail") or body.get("title") or body["code"])
    facts = {name: value for name, value in body.items() if name not in _DOCUMENT}
    Exception.__init__(error, message)
    if isinstance(error, errors.BadSpec):
        error.problems = []
    for name, value in facts.items():
        if not hasattr(errors.ShoalError, name):
            setattr(error, name, value)
    error.message, error.facts = message, facts
    error.code, error.status = body["code"], status
    return error


def _plain(response: httpx.Response, body: Any) -> errors.ShoalError:
    status, url = response.status_code, response.request.url.copy_with(query=None)
    if status in AWAY:
        return errors.ServerAway(f"{url} answered {status}: the server behind it does not run; try again in a moment")
    kind = errors.by_code(_BY_STATUS.get(status, ""))
    said = body.get("detail") if isinstance(body, dict) else response.text[:200].strip()
    error = kind(
        f"{url} answered {status}: {said or response.reason_phrase}; check that SHOAL_URL names a Shoal server"
    )
    error.status = status
    return error
