"""The real command line, as a process of its own with a home of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Ran:
    """What one command line left behind."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@dataclass(frozen=True)
class Shoal:
    """Runs `shoal …` off a terminal, in a folder, with a private SHOAL_HOME."""

    home: Path
    folder: Path

    def __call__(
        self, *arguments: str, env: Mapping[str, str] | None = None, given: str = "", timeout: float = 60
    ) -> Ran:
        done = subprocess.run(
            self.command(arguments),
            cwd=self.folder,
            env=self.environment(env),
            input=given,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """The same without waiting for its end."""
        return subprocess.Popen(
            self.command(arguments),
            cwd=self.folder,
            env=self.environment(None),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def command(self, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "shoal.cli", *arguments]

    def environment(self, more: Mapping[str, str] | None) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        root = str(Path(__file__).parents[2])
        own = {"SHOAL_HOME": str(self.home), "SHOAL_CACHE": str(self.home.with_name("cache"))}
        return {**kept, **own, "COLUMNS": "100", "PYTHONPATH": root, **(more or {})}


@pytest.fixture
def shoal(tmp_path: Path) -> Shoal:
    """Without a server."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    return Shoal(tmp_path / "home", folder)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shoal]:
    """With a server of two CPUs that all tests of the session share."""
    root = tmp_path_factory.mktemp("served")
    folder = root / "here"
    folder.mkdir()
    shoal = Shoal(root / "home", folder)
    started = shoal("server", "start", "--cpus", "2", "--memory", "4GiB")
    assert started.code == 0, started.err
    yield shoal
    shoal("server", "stop")
