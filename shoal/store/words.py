"""How values become columns and come back: texts both databases accept, JSON, specifications and placements."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from shoal.job.fields import STORED
from shoal.job.nodes import Placement, placement_from_json
from shoal.job.spec import JobSpec

_REPLACEMENT = "\ufffd"


def plain(text: str) -> str:
    """Text that both databases take: PostgreSQL has no NUL, neither has half a surrogate pair."""
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "replace").decode().replace("\0", _REPLACEMENT)


def to_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def from_json(text: str) -> Any:
    return json.loads(text)


# Specifications and placements never change once written, and the loop reads the same ones again and again.


@lru_cache(maxsize=1024)
def read_spec(text: str) -> JobSpec:
    return JobSpec.model_validate_json(text, context=STORED)


@lru_cache(maxsize=64)
def read_placement(text: str) -> Placement:
    return placement_from_json(text)
