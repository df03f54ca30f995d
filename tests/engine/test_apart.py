"""The engine's bargains hold, whatever is put around its shepherds; and what it gives to a job, and what not."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal import contract
from shoal._lib import process
from shoal.engine.apart import Apart
from shoal.engine.conformance import EngineContract, MakeEngine, a_gang, look, sweep, until
from shoal.engine.folder import GangFolder
from shoal.engine.isolation import Rules
from shoal.engine.local import LocalEngine
from shoal.errors import StartFailed
from shoal.home import Home
from tests.support.modes import MODES, reachable_folder

pytestmark = pytest.mark.real


@pytest.fixture
def home() -> Iterator[Home]:
    with reachable_folder() as folder:
        yield Home(folder / "home")


@pytest.fixture(params=MODES)
def make_engine(request: pytest.FixtureRequest, home: Home) -> Iterator[MakeEngine]:
    def make() -> LocalEngine:
        return LocalEngine(home, nodes=2, apart=Apart(home, Rules(mode=request.param)))

    yield make
    sweep(make())


class TestLocalEngineApart(EngineContract):
    pass
