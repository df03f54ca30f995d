"""Stacks are picked out of a log in which ranks print and others ask, too."""

from __future__ import annotations

from shoal.client.lines import LogLine
from shoal.client.stacks import told


def test_answers_to_others_and_what_the_rank_prints_are_left_out() -> None:
    lines = [
        ("worker-0", "[stacks of worker-0] theirs"),
        ("worker-0", "[stacks of worker-0] end of aaaa"),
        ("worker-0", "epoch 3"),
        ("worker-1", "[stacks of worker-1] at b.py:1"),
        ("worker-0", "[stacks of worker-0] at a.py:1"),
        ("worker-0", "[stacks of worker-0] at a.py:2"),
        ("worker-1", "[stacks of worker-0] said by the script"),
        ("worker-1", "[stacks of worker-1] end of bbbb"),
        ("worker-0", "[stacks of worker-0] end of bbbb"),
    ]
    found = list(told((LogLine(rank, 0.0, text) for rank, text in lines), "bbbb"))
    assert found == [("worker-1", "at b.py:1"), ("worker-0", "at a.py:1\nat a.py:2")]
