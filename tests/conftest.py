"""For all tests: how hypothesis behaves on a busy machine, and that nothing reaches the user's own SHOAL_HOME."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "shoal", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("shoal")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Every test has a home and a cache of its own, and no server of the user's."""
    home = tmp_path / "shoal-home"
    monkeypatch.setenv("SHOAL_HOME", str(home))
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "shoal-cache"))
    for name in ("SHOAL_URL", "SHOAL_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    yield home
