"""The order of a relayed pipeline can be played, whatever the number of workers at each stage."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.train.partition.order import BACKWARD, FORWARD, orders, owner


def played(widths: list[int], order: dict[tuple[int, int], list[tuple[str, int]]]) -> bool:
    """Workers that do one thing after another, each as soon as what it needs is there: whether all come to the end."""
    left = {place: list(actions) for place, actions in order.items()}
    over: set[tuple[str, int, int]] = set()
    moved = True
    while moved:
        moved = False
        for (stage, _), actions in left.items():
            while actions:
                what, number = actions[0]
                needs = (FORWARD, stage - 1, number) if what == FORWARD else (BACKWARD, stage + 1, number)
                if 0 <= needs[1] < len(widths) and needs not in over:
                    break
                over.add((what, stage, number))
                actions.pop(0)
                moved = True
    return not any(left.values())


@settings(deadline=None, max_examples=150)
@given(st.sampled_from(["gpipe", "1f1b"]), st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(1, 12))
def test_every_order_can_be_played_and_does_everything_once(schedule: str, widths: list[int], count: int) -> None:
    order = orders(schedule, widths, count)
    assert played(widths, order)
    for (stage, number), actions in order.items():
        mine = [one for one in range(count) if owner(one, widths[stage]) == number]
        assert [one for what, one in actions if what == FORWARD] == mine
        assert [one for what, one in actions if what == BACKWARD] == mine


def waiting(actions: list[tuple[str, int]]) -> int:
    held = most = 0
    for what, _ in actions:
        held += 1 if what == FORWARD else -1
        most = max(most, held)
    return most


@given(st.integers(1, 5), st.integers(1, 20))
def test_1f1b_keeps_no_more_activations_than_there_are_stages_left(stages: int, count: int) -> None:
    for (stage, _), actions in orders("1f1b", [1] * stages, count).items():
        assert waiting(actions) == min(count, stages - stage)


def test_gpipe_does_all_forwards_first() -> None:
    assert orders("gpipe", [1, 1], 2)[0, 0] == [(FORWARD, 0), (FORWARD, 1), (BACKWARD, 0), (BACKWARD, 1)]


def test_the_last_of_a_1f1b_alternates() -> None:
    assert orders("1f1b", [1, 1], 2)[1, 0] == [(FORWARD, 0), (BACKWARD, 0), (FORWARD, 1), (BACKWARD, 1)]
