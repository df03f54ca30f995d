"""The published model: versions that are whole, a note that names the newest, old ones that go."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shoal.train.checkpoint import Publisher, published, tensors
from shoal.train.checkpoint.publish import LATEST, latest
from tests.train.checkpoint.keepers import Fragile, Killed


def publisher(folder: Path, value: list[float], **more: object) -> Publisher:
    return Publisher(folder, lambda: {"w": torch.tensor(value)}, **more)  # type: ignore[arg-type]


def test_versions_follow_each_other_also_over_a_restart(tmp_path: Path) -> None:
    value = [0.0]
    one = publisher(tmp_path, value)
    assert published(tmp_path) is None
    for step in (10, 20):
        value[0] = float(step)
        one(step)
    one.finish()
    again = publisher(tmp_path, value)
    value[0] = 30.0
    again(30)
    again.finish()
    found = published(tmp_path)
    assert found and (found[0].version, found[0].step) == (3, 30)
    assert found[1]["w"].tolist() == [30.0]
    assert published(tmp_path, newer_than=3) is None


def test_only_the_last_ones_are_kept(tmp_path: Path) -> None:
    one = publisher(tmp_path, [1.0], keep=2)
    for step in range(5):
        one(step)
    one.finish()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        LATEST,
        "v00000004.safetensors",
        "v00000005.safetensors",
    ]


def test_the_values_are_those_of_the_call(tmp_path: Path) -> None:
    weight = torch.ones(3)
    one = Publisher(tmp_path, lambda: {"w": weight})
    one(1)
    weight.zero_()
    one.finish()
    found = published(tmp_path)
    assert found and found[1]["w"].tolist() == [1.0, 1.0, 1.0]


def test_one_worker_writes_and_the_others_only_take_part(tmp_path: Path) -> None:
    asked: list[int] = []
    other = Publisher(tmp_path, lambda: asked.append(1) or {}, writes=False, collective=True)  # type: ignore[func-returns-value]
    other(1)
    quiet = Publisher(tmp_path, lambda: asked.append(1) or {}, writes=False)  # type: ignore[func-returns-value]
    quiet(1)
    assert asked == [1] and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("at", range(10))
def test_a_kill_at_any_step_leaves_the_version_before(tmp_path: Path, at: int) -> None:
    one = publisher(tmp_path, [1.0])
    one(1)
    one.finish()
    two = publisher(tmp_path, [2.0], disk=Fragile(at, power=at))
    two(2)
    try:
        two.finish()
    except Killed:
        pass
    found = published(tmp_path)
    assert found and found[1]["w"].tolist() == [float(found[0].version)]


def test_the_file_is_one_that_others_read(tmp_path: Path) -> None:
    one = publisher(tmp_path, [1.0, 2.0])
    one(1)
    one.finish()
    note = latest(tmp_path)
    assert note and tensors.read(tmp_path / note.file)["w"].tolist() == [1.0, 2.0]
