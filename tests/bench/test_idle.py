"""The engine that starts nothing, and how a server comes to know it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.bench.idle import NAME, IdleEngine, note_file, publish
from shoal.contract import Seat, Task
from shoal.engine import ENGINES, Gang
from shoal.home import Home


def task(node: str) -> Task:
    seats = [Seat("worker-0", "worker")]
    return Task("http://127.0.0.1:1", None, "j-1", "secret", node, "127.0.0.1", "/", "/", seats, 1)


def test_a_published_engine_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(publish(tmp_path / "path")))
    assert ENGINES.load(NAME) is IdleEngine


def test_a_gang_is_noted_and_lives_until_it_is_killed(own_home: Path) -> None:
    home = Home(own_home)
    home.create()
    engine = IdleEngine(home, nodes=2)
    handle = engine.start(Gang("j-1", (task("node-0"), task("node-1"))))
    assert json.loads(note_file(home).read_text())["ports"] == {"node-0": {"worker-0": []}, "node-1": {"worker-0": []}}
    assert not engine.poll({"j-1": handle})["j-1"].over
    assert engine.kill("j-1")
    assert engine.poll({"j-1": handle})["j-1"].over
