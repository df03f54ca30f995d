"""What environments cost: a ready one adds to a job's start, and building a preset to what pip needs by itself."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from statistics import median

from shoal._lib import pythons
from shoal._lib.clock import Deadline
from shoal.bench.figure import Figure, Target
from shoal.bench.pairs import measure
from shoal.bench.site import Site, site
from shoal.client import environments
from shoal.environments import PRESETS
from shoal.errors import Conflict, StartFailed

CACHED_PAIRS = 25
BUILD_PAIRS = 3
PRESET = "lightgbm-4.7"  # of several wheels, and small
END_SECONDS = 60.0
BUILD_SECONDS = 900.0


def env_cached() -> list[Figure]:
    """From submit to the first line of a command in an environment that is ready, less the same in none of ours."""
    with site() as running:
        folder = running.folder / "job"
        folder.mkdir()
        (folder / "requirements.txt").write_text("--no-index\n")
        _first_line(running, folder, "requirements.txt")  # builds it
        _first_line(running, folder, None)
        pairs = measure(
            CACHED_PAIRS,
            lambda: _first_line(running, folder, "requirements.txt"),
            lambda: _first_line(running, folder, None),
        )
    added = median(ours - theirs for ours, theirs in zip(pairs.ours, pairs.theirs, strict=True))
    peer = f"without {median(pairs.theirs):.0f} ms"
    return [Figure("env.cached", added, Target("<", 50, "ms"), peer, f"median of {CACHED_PAIRS} pairs")]


def env_build() -> list[Figure]:
    """From `shoal env build` to its end, less `python -m venv` and pip by hand, with the same wheels in pip's cache."""
    with site() as running:
        by_hand = running.folder / "by-hand"
        _by_hand(by_hand)  # fills pip's cache
        pairs = measure(BUILD_PAIRS, lambda: _build(running), lambda: _by_hand(by_hand))
    added = median(ours - theirs for ours, theirs in zip(pairs.ours, pairs.theirs, strict=True))
    peer = f"by hand {median(pairs.theirs):.1f} s"
    note = f"{PRESET}, ours {median(pairs.ours):.1f} s, median of {BUILD_PAIRS} pairs"
    return [Figure("env.build", added, Target("<", 5, "s"), peer, note)]


def _first_line(running: Site, folder: Path, environment: str | None) -> float:
    began = time.perf_counter()
    job = running.submit({"command": ["echo", "ready"]}, folder=folder, environment=environment)
    lines = job.logs(follow=True)
    line = next(line for line in lines if not line.text.startswith("[environment]"))
    taken = time.perf_counter() - began
    lines.close()
    if job.wait(END_SECONDS).state != "succeeded" or line.text != "ready":
        raise StartFailed(f"the job to measure failed: {job.message}")
    return taken * 1000


def _build(running: Site) -> float:
    began = time.perf_counter()
    job = environments.build(PRESET, running.api).wait(BUILD_SECONDS)
    taken = time.perf_counter() - began
    if job.state != "succeeded":
        raise StartFailed(f"{PRESET} could not be built: {job.message}")
    _remove(running)
    return taken


def _remove(running: Site) -> None:
    """Once its shepherd is gone, which is a moment after the job."""
    deadline = Deadline(END_SECONDS)
    while True:
        try:
            environments.rm(PRESET, running.api)
            return
        except Conflict:
            if deadline.over():
                raise
        time.sleep(0.05)


def _by_hand(folder: Path) -> float:
    shutil.rmtree(folder, ignore_errors=True)
    python = pythons.find(pythons.acceptable(PRESETS[PRESET].pythons), PRESET).path
    began = time.perf_counter()
    for words in (
        [python, "-m", "venv", str(folder)],
        [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *PRESETS[PRESET].lines],
    ):
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise StartFailed(f"{' '.join(words[:4])} by hand failed:\n{done.stderr[-2000:]}")
    return time.perf_counter() - began
