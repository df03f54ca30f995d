"""Fixtures: the shepherd's archive, built once, and flocks that leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal._lib import pyz
from shoal.contract import Process

from .flock import Flock

MODULES = ["shoal.shepherd", "shoal.contract", "shoal.catalogue", "shoal.errors", "shoal._lib"]


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("pyz") / "shepherd.pyz"
    return pyz.build(target, MODULES, main="shoal.shepherd.__main__:main")


@pytest.fixture
def flock(archive: Path, tmp_path: Path) -> Iterator[Callable[..., Flock]]:
    """Makes a flock: `flock(Process(…), …, log_limit=…)`."""
    made: list[Flock] = []

    def make(*processes: Process, **options: Any) -> Flock:
        made.append(Flock(archive, tmp_path, list(processes), **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
