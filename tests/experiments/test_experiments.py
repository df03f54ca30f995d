"""The experiments show what they say they show: each runs small, and the shape of its numbers is looked at. The page in
the documentation says what was measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "experiments"
MEASURED = SCRIPTS / "measured"
PAGE = ROOT / "docs" / "experiments.md"
NAMES = ("staleness", "bounded", "local", "slow_worker")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The numbers of a quick run, by name; each is run once."""

    @cache
    def numbers(name: str, *more: str) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp(name)
        command = [sys.executable, str(SCRIPTS / f"{name}.py"), "--quick", "--out", str(folder), *more]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text())
        assert (folder / f"{name}.svg").read_text().startswith("<svg")
        assert all(f"**{table['title']}**" in done.stdout for table in found["tables"])
        return found

    return numbers


def test_a_fixed_rate_fails_where_a_scaled_one_learns(small: Any) -> None:
    errors = small("staleness")["data"]["errors"]
    assert errors["fixed rate, n=30"][-1] > 80 and errors["rate / staleness, n=30"][-1] < 40
    assert errors["alone"][-1] < 40, "the rate itself is not too high for the batch: it is the staleness"
    assert abs(errors["fixed rate, n=1"][-1] - errors["rate / staleness, n=1"][-1]) < 15


def test_staleness_is_about_n_and_the_books_balance(small: Any) -> None:
    found = small("staleness")["data"]
    assert all(off == 0 for off in found["law"].values())
    for n, mean in found["mean_staleness"].items():
        assert 0.85 * int(n) < mean < 1.05 * int(n)


def test_waiting_falls_with_the_bound(small: Any) -> None:
    idle = list(small("bounded")["data"]["idle"].values())
    assert all(after < before + 0.5 for before, after in pairwise(idle))
    assert idle[0] > 40 and idle[-1] < 10


def test_a_bound_in_between_is_fastest_for_cached_reads_and_fresh_reads_stay_good(small: Any) -> None:
    found = small("bounded")["data"]
    seconds = {
        way: {bound: one["seconds"] for bound, one in found[way].items()} for way in ("fresh reads", "cached reads")
    }
    cached, fresh = seconds["cached reads"], seconds["fresh reads"]
    assert cached["4"] < 0.8 * cached["0"] and cached["4"] < 0.8 * cached["16"]
    assert fresh["16"] < 0.8 * fresh["0"]
    assert found["cached reads"]["16"]["iterations"] > 1.3 * found["cached reads"]["0"]["iterations"]


def test_bytes_are_one_part_in_h(small: Any) -> None:
    found = small("local")["data"]
    for outer in ("averaging", "DiLoCo"):
        whole = found["averaging, H=1"]["sent"]
        assert all(found[f"{outer}, H={every}"]["sent"] * every == whole for every in (1, 5, 20))
        assert [found[f"{outer}, H={every}"]["rounds"] for every in (1, 5, 20)] == [40, 8, 2]


def test_meeting_seldom_costs_little(small: Any) -> None:
    found = small("local")["data"]
    assert found["averaging, H=20"]["loss"] < 1.1 * found["averaging, H=1"]["loss"]


def test_only_those_that_go_in_step_are_slow_with_the_slowest(small: Any) -> None:
    slowdown = {name: found["4"][-1] for name, found in small("slow_worker")["data"]["slowdown"].items()}
    assert slowdown["allreduce"] > 7 and slowdown["local-sgd:every=8"] > 6
    best = 4 / 3.1  # three work on, the fourth does a tenth
    assert slowdown["ps-async"] < 1.1 * best and slowdown["gossip"] < 1.1 * best


@pytest.mark.real
def test_real_processes_agree(small: Any) -> None:
    real = small("slow_worker", "--real")["data"]["real"]
    kept = {name: rates[-1] / rates[0] for name, rates in real.items()}
    assert kept["allreduce"] < 0.5 * kept["ps-async"] and kept["allreduce"] < 0.5 * kept["gossip"]


@pytest.mark.parametrize("name", NAMES)
def test_the_page_says_what_was_measured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from results import Table, markdown

    found, page = json.loads((MEASURED / f"{name}.json").read_text()), PAGE.read_text(encoding="utf-8")
    assert not found["quick"]
    assert all(markdown(Table(**table)) in page for table in found["tables"])
    assert (
        f"images/experiments/{name}.svg" in page and (PAGE.parent / "images" / "experiments" / f"{name}.svg").exists()
    )
