"""Pairs: who begins, and what the ratio of two sides is."""

from __future__ import annotations

from shoal.bench.pairs import Pairs, measure


def test_either_side_begins_every_other_pair() -> None:
    order: list[str] = []

    def side(name: str) -> float:
        order.append(name)
        return 1.0

    measure(3, lambda: side("ours"), lambda: side("theirs"))
    assert order == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]


def test_the_ratio_is_the_median_of_the_pairs_and_not_the_pair_of_medians() -> None:
    pairs = Pairs(ours=(1.0, 4.0, 9.0), theirs=(1.0, 2.0, 10.0))
    assert pairs.ratio == 1.0
    assert pairs.spread.startswith("3 pairs")
