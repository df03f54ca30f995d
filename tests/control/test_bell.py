"""The bell: nobody who waits misses a ring, and topics do not pile up."""

from __future__ import annotations

import asyncio

import pytest

from shoal.control import bell
from shoal.control.bell import Bell


def test_who_waits_is_woken_by_a_ring_from_any_thread() -> None:
    async def scene() -> None:
        one = Bell()
        one.bind(asyncio.get_running_loop())
        waiting = asyncio.create_task(one.wait("job:a", one.number("job:a"), 20))
        await asyncio.sleep(0)
        await asyncio.to_thread(one.ring, "job:a")
        assert await waiting == one.number("job:a") > 0

    asyncio.run(scene())


def test_old_topics_are_forgotten_and_rung_again_are_news(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bell, "MOST_TOPICS", 3)
    one = Bell()
    for name in "abcda":
        one.ring(name)
    assert len(one._rung) == 3
    assert one.number("b") == 0
    seen = one.number("a")
    one.ring("b")
    assert one.number("b") > seen
