"""Interpreters with packages that Shoal does without: built once, by Shoal's own cache, for all tests."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from shoal._lib.venvs import Recipe, Venvs
from shoal.bench.presets import python_of
from shoal.home import ENVIRONMENTS

# Read when the tests are collected: each test has a cache of its own, and these are for all.
CACHE = Path(os.environ.get("SHOAL_CACHE") or Path.home() / ".cache" / "shoal")
BOOSTING = ("xgboost-cpu==3.2.0", "lightgbm==4.7.0", "scikit-learn>=1.7", "pyarrow>=21")
BUILDING = 600.0  # seconds


def interpreter(*requirements: str) -> str:
    """A Python that has these and nothing else. It is held until this process ends."""
    recipe = Recipe(" ".join(requirements), lines=requirements)
    return str(Venvs(CACHE / ENVIRONMENTS).use(recipe, lambda line: None).python)


def preset(name: str) -> str:
    """The Python of a preset, as a job's would be."""
    return python_of(name, CACHE)


@pytest.fixture(scope="session")
def boosting() -> str:
    """A Python with XGBoost, LightGBM, scikit-learn and pyarrow."""
    return interpreter(*BOOSTING)


def over_ours(*requirements: str) -> str:
    """A Python that has these over all that the tests have, so that torch is neither fetched nor stored again, and
    never in another version. The first who asks builds it, others wait for him; fails with pip's words."""
    base = sysconfig.get_paths()["purelib"]
    name = hashlib.sha256(repr((base, sys.version, sorted(requirements))).encode()).hexdigest()[:16]
    folder = CACHE / "test-interpreters" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "whole").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _lay_over(folder, base, requirements)
            (folder / "whole").touch()
    return str(folder / "bin" / "python")


def _lay_over(folder: Path, base: str, requirements: tuple[str, ...]) -> None:
    venv.create(folder, with_pip=False)
    own = next((folder / "lib").glob("python*/site-packages"))
    (own / "base.pth").write_text(f"{base}\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    have = subprocess.run([*pip, "freeze", "--exclude-editable"], check=True, capture_output=True, text=True).stdout
    versions = folder / "versions.txt"
    versions.write_text("".join(f"{line}\n" for line in have.splitlines() if "==" in line))
    words = [*pip, "--python", str(folder / "bin" / "python"), "install", "-c", str(versions), *requirements]
    # DeepSpeed looks for torch while it is built, which an isolated build would not find.
    built = subprocess.run([*words, "--no-build-isolation"], capture_output=True, text=True, timeout=BUILDING)
    assert built.returncode == 0, f"{requirements} cannot be installed:\n{built.stdout}\n{built.stderr}"
