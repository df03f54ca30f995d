"""Interpreters with packages that Shoal does without: built once for each set of requirements, kept in the cache.

An environment lies over the one that runs the tests, so that what is there already (torch above all) is neither fetched
nor stored again, and never in another version.
"""

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

# Read when the tests are collected: each test has a cache of its own, and these are for all.
CACHE = Path(os.environ.get("SHOAL_CACHE") or Path.home() / ".cache" / "shoal") / "test-interpreters"
BUILDING = 600.0  # seconds


def interpreter(*requirements: str) -> Path:
    """The interpreter; the first who asks builds it, others wait for him. Fails with pip's words."""
    base = sysconfig.get_paths()["purelib"]
    name = hashlib.sha256(repr((base, sys.version, sorted(requirements))).encode()).hexdigest()[:16]
    folder = CACHE / name
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "whole").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _build(folder, base, requirements)
            (folder / "whole").touch()
    return folder / "bin" / "python"


def _build(folder: Path, base: str, requirements: tuple[str, ...]) -> None:
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
