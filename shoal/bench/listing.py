"""How fast jobs are listed and filtered when 12,500 are stored: over the API, and by `shoal jobs` from start to end."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from shoal.bench.figure import Figure, Target
from shoal.bench.history import fill
from shoal.bench.site import Site, site
from shoal.home import Home

JOBS = 12_500
ROUNDS = 10  # of the questions below
COMMANDS = 9
QUESTIONS: tuple[dict[str, str | int], ...] = (
    {},
    {"limit": 500},
    {"state": "failed"},
    {"state": "succeeded,stopped", "limit": 100},
    {"name": "digits-7"},
    {"name": "nobody-is-called-so"},
    {"tag": "night"},
    {"project": "vision", "framework": "pytorch"},
)


def listing() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        home = Home(Path(folder) / "home")
        fill(home, JOBS)
        with site(home=home.root) as running:
            api = _ask(running)
            commands = [_command(running) for _ in range(COMMANDS)]
    asked = f"p50 of {len(api)} requests of {len(QUESTIONS) + 1} kinds, worst {max(api):.0f} ms"
    run = f"median of {COMMANDS}, worst {max(commands):.0f} ms"
    return [
        Figure("list.api", median(api), Target("<", 50, "ms"), note=asked),
        Figure("list.cli", median(commands), Target("<", 600, "ms"), note=run),
    ]


def _ask(running: Site) -> list[float]:
    """Milliseconds of each question, and of the second page of the first."""
    second = running.api.request("GET", "/jobs")["next"]
    asked = [*QUESTIONS, {"cursor": second}]
    return [_timed(running, question) for _ in range(ROUNDS) for question in asked]


def _timed(running: Site, question: dict[str, str | int]) -> float:
    began = time.perf_counter()
    running.api.request("GET", "/jobs", params=question)
    return (time.perf_counter() - began) * 1000


def _command(running: Site) -> float:
    began = time.perf_counter()
    argv = [sys.executable, "-m", "shoal.cli", "jobs"]
    subprocess.run(argv, env=running.environment, check=True, stdout=subprocess.DEVNULL, timeout=60)
    return (time.perf_counter() - began) * 1000
