"""A stream that has nothing to say still lives: pings come by the clock, whatever wakes its followers."""

from __future__ import annotations

import pytest

from shoal.server import streams
from shoal.server.streams import Pulse


def test_a_ping_is_due_after_silence_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PING_SECONDS", 0.0)
    pulse = Pulse()
    monkeypatch.setattr(streams, "PING_SECONDS", 60.0)
    assert pulse.due()
    assert not pulse.due()
    pulse.sent()
    assert not pulse.due()
