import pytest

from shoal.engine.conformance import EngineContract, MakeEngine
from shoal.engine.simulated import SimulatedEngine


class TestSimulatedEngine(EngineContract):
    @pytest.fixture
    def make_engine(self) -> MakeEngine:
        only = SimulatedEngine(nodes=3)
        return lambda: only
