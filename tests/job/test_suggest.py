from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import strategy
from shoal.job.suggest import Machines, Profile, suggest

FAST = Machines(workers=4, bandwidth=5e9)
COMPUTING = Profile(compute=0.5, parameter_bytes=4_000_000)
TALKING = Profile(compute=0.005, parameter_bytes=400_000_000)


def test_a_script_that_mostly_computes_averages_every_step() -> None:
    found = suggest(COMPUTING, FAST)
    assert found.best == "allreduce"
    assert any("cheap" in reason for reason in found.reasons)


def test_a_script_that_mostly_exchanges_does_so_less_often() -> None:
    found = suggest(TALKING, FAST)
    assert found.best.startswith("local-sgd:every=")
    assert any("does not hide" in reason for reason in found.reasons)


def test_uneven_steps_speak_against_waiting() -> None:
    even = suggest(COMPUTING, FAST).ranking
    uneven = suggest(replace(COMPUTING, slow=2.5), FAST).ranking
    place = [c.strategy for c in uneven].index
    assert [c.strategy for c in even].index("allreduce") == 0 and place("allreduce") > place("ps-async")


def test_sparse_gradients_belong_on_servers() -> None:
    wide = Profile(compute=0.02, parameter_bytes=2_000_000_000, touched=0.001)
    found = suggest(wide, FAST)
    assert found.best.startswith("ps-") and any("train.Embedding" in reason for reason in found.reasons)


def test_a_model_that_does_not_fit_is_sharded() -> None:
    found = suggest(replace(COMPUTING, parameter_bytes=8 << 30), replace(FAST, memory=16 << 30))
    assert found.best == "fsdp" and "only a sharded model fits" in found.reasons[0]


def test_one_worker_needs_nobody() -> None:
    assert "nobody to agree with" in suggest(COMPUTING, replace(FAST, workers=1)).reasons[0]


@given(
    st.floats(1e-4, 10), st.integers(1000, 10**10), st.floats(0, 3), st.floats(1e-5, 1),
    st.integers(2, 256), st.floats(1e7, 1e11), st.integers(1, 16),
)  # fmt: skip
@pytest.mark.filterwarnings("error")
def test_every_suggestion_can_be_submitted_and_is_the_best_of_its_ranking(
    compute: float, size: int, slow: float, touched: float, workers: int, bandwidth: float, servers: int
) -> None:
    profile = Profile(compute, size, slow=compute * slow, touched=touched)
    found = suggest(profile, Machines(workers, bandwidth, servers))
    assert all(strategy.parse(one.strategy) for one in found.ranking)
    assert found.ranking[0].worth == max(one.worth for one in found.ranking)
    assert all(one.step >= compute and 0 < one.discount <= 1 for one in found.ranking)
