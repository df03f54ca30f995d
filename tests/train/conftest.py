"""For the training library's tests: the logger is heard, few threads, and no world from outside."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from shoal.train import voice

_OUTSIDE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")


@pytest.fixture(autouse=True)
def no_world_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name in _OUTSIDE or (name.startswith("SHOAL_") and name not in ("SHOAL_HOME", "SHOAL_CACHE")):
            monkeypatch.delenv(name)


@pytest.fixture
def heard() -> Iterator[None]:
    """What `shoal.train` says reaches caplog, also after a run has given the logger a stream of its own."""
    before = voice.log.propagate, voice.log.level
    voice.log.propagate = True
    voice.log.setLevel(logging.INFO)
    yield
    voice.log.propagate, voice.log.level = before
