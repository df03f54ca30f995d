import pytest

from shoal.engine import ENGINES
from shoal.engine.conformance import EngineContract, MakeEngine
from shoal.engine.simulated import SimulatedEngine


class TestSimulatedEngine(EngineContract):
    @pytest.fixture
    def make_engine(self) -> MakeEngine:
        only = SimulatedEngine(nodes=3)
        return lambda: only


def test_the_catalogue_has_it() -> None:
    assert ENGINES.load("simulated") is SimulatedEngine
