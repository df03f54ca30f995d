"""Keyset paging: a page ends with the key of its last item, so that what is inserted meanwhile moves nothing."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shoal.errors import BadSpec

Item = TypeVar("Item")
Key = TypeVar("Key", int, str)

LARGEST_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """`next` is the cursor of the following page; None on the last."""

    items: tuple[Item, ...]
    next: str | None


def check_limit(limit: int) -> int:
    if not 1 <= limit <= LARGEST_PAGE:
        raise BadSpec(f"limit: {limit} is not within 1 to {LARGEST_PAGE}; ask for a smaller page and follow its cursor")
    return limit


def encode_cursor(key: int | str) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def decode_cursor(cursor: str, kind: type[Key]) -> Key:
    """The key a page ended with; BadSpec for anything that no page of this kind gave out."""
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        key = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        key = None
    if type(key) is not kind or (isinstance(key, int) and not 0 <= key < 1 << 63):
        raise BadSpec(f"cursor: {cursor[:80]!r} does not come from a page of this list; start again without one")
    return key


def cut(rows: Sequence[Any], limit: int, key: Callable[[Any], int | str], make: Callable[[Any], Item]) -> Page[Item]:
    """A page from up to `limit` + 1 rows: the one too many says that there is another page."""
    more = len(rows) > limit
    kept = rows[:limit]
    return Page(tuple(make(row) for row in kept), encode_cursor(key(kept[-1])) if more else None)
