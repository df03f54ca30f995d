"""The experiments show what they say they show: each runs small, and the shape of its numbers is looked at. The page in
the documentation says what was measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "experiments"
MEASURED = SCRIPTS / "measured"
PAGE = ROOT / "docs" / "experiments.md"
IMAGES = PAGE.parent / "images" / "experiments"
NAMES = ("staleness", "bounded", "local", "slow_worker")


def python(script: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(SCRIPTS / script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def quick(name: str, folder: Path) -> dict[str, Any]:
    """The data of a small run; its tables were printed and its plot drawn."""
    said = python(f"{name}.py", "--quick", "--out", str(folder))
    found = json.loads((folder / f"{name}.json").read_text())
    assert (folder / f"{name}.svg").read_text().startswith("<svg")
    assert all(f"**{table['title']}**" in said for table in found["tables"])
    data: dict[str, Any] = found["data"]
    return data


def test_staleness_breaks_a_fixed_rate_and_not_a_scaled_one(tmp_path: Path) -> None:
    found = quick("staleness", tmp_path)
    last = {name: errors[-1] for name, errors in found["errors"].items()}
    assert last["fixed rate, n=30"] > 80 and last["rate / staleness, n=30"] < 40
    assert last["alone"] < 40, "the rate is not too high for the batch: it is the staleness"
    assert abs(last["fixed rate, n=1"] - last["rate / staleness, n=1"]) < 15
    assert all(0.85 * int(n) < mean < 1.05 * int(n) for n, mean in found["mean_staleness"].items())
    assert all(off == 0 for off in found["law"].values()), "the conservation law"


def test_a_bound_trades_waiting_for_iterations(tmp_path: Path) -> None:
    found = quick("bounded", tmp_path)
    idle = list(found["idle"].values())
    assert all(after < before + 0.5 for before, after in pairwise(idle)) and idle[0] > 40 and idle[-1] < 10
    cached, fresh = found["cached reads"], found["fresh reads"]
    assert cached["16"]["iterations"] > 1.3 * cached["0"]["iterations"]
    assert cached["4"]["seconds"] < 0.8 * min(cached["0"]["seconds"], cached["16"]["seconds"]), "a U"
    assert fresh["16"]["seconds"] < 0.8 * fresh["0"]["seconds"]


def test_meeting_seldom_costs_one_part_in_h_of_the_bytes_and_little_quality(tmp_path: Path) -> None:
    found = quick("local", tmp_path)
    whole = found["averaging, H=1"]["sent"]
    for outer in ("averaging", "DiLoCo"):
        assert all(found[f"{outer}, H={every}"]["sent"] * every == whole > 0 for every in (1, 5, 20))
        assert [found[f"{outer}, H={every}"]["rounds"] for every in (1, 5, 20)] == [20, 4, 1]
    assert found["averaging, H=20"]["loss"] < 1.1 * found["averaging, H=1"]["loss"]


def test_only_those_that_wait_are_slow_with_the_slowest(tmp_path: Path) -> None:
    slowdown = {name: found["4"][-1] for name, found in quick("slow_worker", tmp_path)["slowdown"].items()}
    assert slowdown["allreduce"] > 7 and slowdown["local-sgd:every=8"] > 6
    best = 4 / 3.1  # three work on, the fourth does a tenth
    assert slowdown["ps-async"] < 1.1 * best and slowdown["gossip"] < 1.1 * best


@pytest.mark.real
def test_real_processes_agree() -> None:
    rates = json.loads(python("sleepers.py", "0.2"))
    kept = {name: found[-1] / found[0] for name, found in rates.items()}
    assert kept["allreduce"] < 0.5 * min(kept["ps-async"], kept["gossip"])


@pytest.mark.parametrize("name", NAMES)
def test_the_page_says_what_was_measured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from results import Table, markdown

    found, page = json.loads((MEASURED / f"{name}.json").read_text()), PAGE.read_text(encoding="utf-8")
    assert not found["quick"]
    assert all(markdown(Table(**table)) in page for table in found["tables"])
    assert f"images/experiments/{name}.svg" in page and (IMAGES / f"{name}.svg").exists()
