"""Server-sent events as they come off the wire: bytes in pieces of any size to whole events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class Event(NamedTuple):
    """One event. `data` is the decoded JSON; `id` is where to go on after it, None when the server gave none."""

    id: str | None
    event: str
    data: Any


def events(pieces: Iterable[bytes]) -> Iterator[Event | None]:
    """The events of a stream, and None for each comment (a ping: the server lives). A torn last one is dropped."""
    fields: dict[str, list[str]] = {}
    for line in _lines(pieces):
        if line.startswith(b":"):
            yield None
        elif line:
            _note(fields, line)
        else:
            if "data" in fields:
                yield _event(fields)
            fields = {}


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    # A long line comes in many pieces; they are joined once, at its end.
    held: list[bytes] = []
    for piece in pieces:
        first, *rest = piece.split(b"\n")
        held.append(first)
        if rest:
            yield b"".join(held).removesuffix(b"\r")
            for line in rest[:-1]:
                yield line.removesuffix(b"\r")
            held = [rest[-1]]


def _note(fields: dict[str, list[str]], line: bytes) -> None:
    name, _, value = line.decode("utf-8", "replace").partition(":")
    fields.setdefault(name, []).append(value.removeprefix(" "))


def _event(fields: dict[str, list[str]]) -> Event:
    identity = fields["id"][-1] if "id" in fields else None
    return Event(identity, fields.get("event", ["message"])[-1], json.loads("\n".join(fields["data"])))
