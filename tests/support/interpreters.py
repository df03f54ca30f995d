"""Interpreters that have what a framework needs: virtual environments built once, kept between runs of the tests."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

BOOSTING = ("xgboost-cpu==3.2.0", "lightgbm==4.7.0", "scikit-learn>=1.7", "pyarrow>=21")

# Read before any test has a cache of its own.
_CACHE = Path(os.environ.get("SHOAL_CACHE") or Path.home() / ".cache" / "shoal")


def interpreter(*requirements: str) -> str:
    """The path of a Python that has them. The first who asks builds it; a build that broke off is begun anew."""
    text = "\n".join([sys.version, *sorted(requirements)])
    folder = _CACHE / "test-environments" / hashlib.sha256(text.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    python, done = folder / "venv" / "bin" / "python", folder / "complete"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            _run(sys.executable, "-m", "venv", "--clear", str(folder / "venv"))
            _run(str(python), "-m", "pip", "install", "--quiet", *requirements)
            done.write_text(text)
    return str(python)


def _run(*words: str) -> None:
    made = subprocess.run(words, capture_output=True, text=True)
    assert made.returncode == 0, f"{words} left with {made.returncode}\n{made.stdout}\n{made.stderr}"


@pytest.fixture(scope="session")
def boosting() -> str:
    """A Python with XGBoost, LightGBM, scikit-learn and pyarrow."""
    return interpreter(*BOOSTING)
