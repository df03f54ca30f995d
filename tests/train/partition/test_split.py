"""Where a chain is cut: the best place, the user's places, and what is refused."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import BadSpec
from shoal.train.errors import BadModel
from shoal.train.partition import split
from shoal.train.partition.split import Unit


def dearest(costs: list[float], cuts: list[int], widths: list[int]) -> float:
    return max(sum(costs[a:b]) / wide for (a, b), wide in zip(split.spans(cuts, len(costs)), widths, strict=True))


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_the_dearest_stage_is_as_cheap_as_it_can_be(data: st.DataObject) -> None:
    costs = data.draw(st.lists(st.integers(0, 20).map(float), min_size=1, max_size=9))
    blocked = data.draw(st.sets(st.integers(1, max(1, len(costs) - 1)), max_size=4)) if len(costs) > 1 else set()
    places = [place for place in range(1, len(costs)) if place not in blocked]
    stages = data.draw(st.integers(1, len(places) + 1))
    widths = data.draw(st.lists(st.integers(1, 4), min_size=stages, max_size=stages))
    cuts = split.balanced(costs, stages, dict.fromkeys(blocked, "x"), widths)
    assert len(cuts) == stages - 1 and cuts == sorted(set(cuts)) and not set(cuts) & blocked
    best = min(dearest(costs, list(other), widths) for other in combinations(places, stages - 1))
    assert dearest(costs, cuts, widths) == pytest.approx(best)


def test_a_wide_stage_gets_more_of_the_work() -> None:
    assert split.balanced([1.0] * 9, 2, {}, [2, 1]) == [6]


def test_more_stages_than_layers_are_refused_with_the_reason() -> None:
    with pytest.raises(BadModel, match="can be cut into 2 stages and 3 are asked for.*calls 2 modules.*lower stages"):
        split.balanced([1.0, 1.0], 3, {})
    with pytest.raises(BadModel, match="1 stages and 2 are asked for: the weight 'a' is tied.*weights of its own"):
        split.balanced([1.0, 1.0], 2, {1: "the weight 'a' is tied"})
    with pytest.raises(BadModel, match=r"has 2 layers to cut between \(a, b\) and 3 stages"):
        split.enough(["a", "b"], 3)


def test_marks_say_where() -> None:
    units = [Unit("a", marked=True), Unit("b"), Unit("c", marked=True)]
    assert split.marked(units, 2, {}) == [2]
    with pytest.raises(BadSpec, match=r"1 marks \(c\) make 2 stages and the pipeline has 3"):
        split.marked(units, 3, {})
    with pytest.raises(BadModel, match="cannot be cut at the mark on 'c': because; move the mark"):
        split.marked(units, 2, {2: "because"})


def test_a_cost_is_compute_for_every_microbatch_and_one_update() -> None:
    unit = Unit("a", flops=10, parameters=2, outputs=3)
    assert unit.cost(1) == 3 * 10 + 10 * 3 + 20 * 2
    assert unit.cost(4) == 4 * (3 * 10 + 10 * 3) + 20 * 2


@pytest.mark.parametrize(
    ("text", "stages", "workers", "found"),
    [("", 2, 4, [2, 2]), ("2x1", 2, 3, [2, 1]), ("1 x 3", 2, 4, [1, 3]), ("", 1, 2, [2])],
)
def test_workers_at_each_stage(text: str, stages: int, workers: int, found: list[int]) -> None:
    assert split.replicas_of(text, stages, workers) == found


@pytest.mark.parametrize(
    ("text", "stages", "workers", "says"),
    [
        ("", 3, 4, "4 workers cannot make pipelines of 3 stages"),
        ("", 4, 2, "2 workers cannot make pipelines of 4 stages"),
        ("2x1", 3, 3, "names 2 stages and there are 3"),
        ("2x0", 2, 2, "whole numbers from 1 on"),
        ("axb", 2, 2, "whole numbers from 1 on"),
        ("2x2", 2, 3, "needs 4 workers and there are 3"),
    ],
)
def test_workers_that_do_not_add_up_are_refused(text: str, stages: int, workers: int, says: str) -> None:
    with pytest.raises(BadSpec, match=says):
        split.replicas_of(text, stages, workers)


@given(st.integers(1, 500), st.integers(1, 64))
def test_microbatches_are_equal_and_as_many_as_asked_where_that_can_be(batch: int, wanted: int) -> None:
    count = split.microbatches(batch, wanted)
    assert 1 <= count <= wanted and batch % count == 0
    assert batch % wanted or count == wanted
