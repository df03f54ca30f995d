"""A stale change counts less the staler it is, never nothing, and in full up to one update."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.strategy import parse
from shoal.train.ps import scale
from shoal.train.ps.scale import Scale

SCALES = st.one_of(
    st.just(scale.none),
    st.just(scale.inverse()),
    st.floats(0, 4).map(scale.poly),
    st.tuples(st.floats(0, 10), st.floats(0, 50)).map(lambda pair: scale.hinge(*pair)),
)


@given(SCALES, st.integers(0, 10_000), st.integers(0, 10_000))
def test_it_never_grows_with_staleness_and_stays_positive(scale_of: Scale, first: int, second: int) -> None:
    fresher, staler = sorted((first, second))
    assert 0 < scale_of(staler) <= scale_of(fresher) <= 1


@given(SCALES)
def test_fresh_and_one_update_old_count_in_full(scale_of: Scale) -> None:
    assert scale_of(0) == scale_of(1) == 1.0


@pytest.mark.parametrize(
    ("text", "tau", "value"),
    [
        ("ps-async", 7, 1.0),
        ("ps-async:scale=inverse", 4, 0.25),
        ("ps-async:scale=poly,a=0.5", 16, 0.25),
        ("ps-async:scale=hinge,a=1,b=4", 4, 1.0),
        ("ps-async:scale=hinge,a=1,b=4", 7, 0.25),
        ("ps-sync", 3, 1.0),
    ],
)
def test_options_name_it(text: str, tau: int, value: float) -> None:
    assert scale.of(parse(text).options)(tau) == value
