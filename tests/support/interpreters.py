"""Interpreters that have what a framework needs: virtual environments built once, kept between runs of the tests."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

BOOSTING = ("xgboost-cpu==3.2.0", "lightgbm==4.7.0", "scikit-learn>=1.7", "pyarrow>=21")

# Read before any test has a cache of its own.
_CACHE = Path(os.environ.get("SHOAL_CACHE") or Path.home() / ".cache" / "shoal")


def interpreter(*requirements: str) -> str:
    """The path of a Python that has them. The first who asks builds it; a build that broke off is begun anew."""
    return _built(requirements, _install)


def layered(*requirements: str) -> str:
    """The same over the environment that runs the tests, whose packages (torch above all) are neither fetched nor
    stored again, and stay in their versions."""
    return _built(("over", sysconfig.get_paths()["purelib"], *requirements), _install_over)


def _built(requirements: Sequence[str], install: Callable[[Path, Sequence[str]], None]) -> str:
    text = "\n".join([sys.version, *sorted(requirements)])
    folder = _CACHE / "test-environments" / hashlib.sha256(text.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    python, done = folder / "venv" / "bin" / "python", folder / "complete"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            install(folder / "venv", requirements)
            done.write_text(text)
    return str(python)


def _install(folder: Path, requirements: Sequence[str]) -> None:
    _run(sys.executable, "-m", "venv", "--clear", str(folder))
    _run(str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *requirements)


def _install_over(folder: Path, requirements: Sequence[str]) -> None:
    _, base, *wanted = requirements
    _run(sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder))
    own = next((folder / "lib").glob("python*/site-packages"))
    (own / "base.pth").write_text(f"{base}\n")
    versions = folder / "versions.txt"
    have = _run(sys.executable, "-m", "pip", "freeze", "--exclude-editable").splitlines()
    versions.write_text("".join(f"{line}\n" for line in have if "==" in line))
    pip = (sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet")
    # DeepSpeed looks for torch while it is built, which an isolated build would not find.
    _run(*pip, "--no-build-isolation", "-c", str(versions), *wanted)


def _run(*words: str) -> str:
    made = subprocess.run(words, capture_output=True, text=True)
    assert made.returncode == 0, f"{words} left with {made.returncode}\n{made.stdout}\n{made.stderr}"
    return made.stdout


@pytest.fixture(scope="session")
def boosting() -> str:
    """A Python with XGBoost, LightGBM, scikit-learn and pyarrow."""
    return interpreter(*BOOSTING)
