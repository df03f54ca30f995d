from __future__ import annotations

import json

import pytest

from shoal.shepherd.progress import Board, parse


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        (
            b"progress 3/10 loss=0.25 accuracy=0.97",
            {"done": 3, "total": 10, "fraction": 0.3, "loss": 0.25, "accuracy": 0.97},
        ),
        (b"progress 42%", {"fraction": 0.42}),
        (b"progress 0/0", {"done": 0, "total": 0}),
        (b"progress 12/10", {"done": 12, "total": 10, "fraction": 1.0}),
        (b"progress loss=1e-3", {"loss": 0.001}),
        (b"progress 1/2 loss=nan", {"done": 1, "total": 2, "fraction": 0.5, "loss": "nan"}),
        (b"progress 1/2 note=fine", {"done": 1, "total": 2, "fraction": 0.5}),
        (b"progress is slow", None),
        (b"no progress 1/2", None),
        (b" 45%|####      | 45/100 [00:01<00:02, 30it/s]", {"done": 45, "total": 100, "fraction": 0.45}),
        (b"epoch 1: 45%|####      | 4.5k/10k [00:01<00:02]", {"fraction": 0.45}),
        (b"45% of users", None),
    ],
)
def test_a_line_tells_its_facts(line: bytes, facts: dict[str, object] | None) -> None:
    assert parse(line) == facts
    json.dumps(facts, allow_nan=False)


def test_a_flood_of_values_is_bounded() -> None:
    facts = parse(b"progress 1/2 " + b" ".join(b"v%d=1" % number for number in range(1000)))
    assert facts is not None
    assert len(facts) < 50


def test_the_board_gives_what_changed_once_and_merges_names() -> None:
    board = Board()
    assert board.post("worker-0", {"loss": 1.0})
    assert board.post("worker-0", {"done": 1})
    assert not board.post("worker-0", {"done": 1})
    assert board.fetch() == {"worker-0": {"loss": 1.0, "done": 1}}
    assert not board.changed
