"""What an update does: sums and means, scaled changes, elastic pulls, compensation; and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.train.errors import BadCheckpoint, BadOptimizer
from shoal.train.ps.layout import Layout, ParamInfo, Part
from shoal.train.ps.orders import Apply, Contribution, Hold
from shoal.train.ps.recipe import Recipe
from shoal.train.ps.shard import ADD, ELASTIC, MAX_WORKERS, MEAN, STEP, Shard
from tests.train.ps.shards import whole

PART = Layout.of([ParamInfo("a", 200), ParamInfo("b", 33)], chunk_bytes=256).part(0)


def shard_of(
    folder: Path, applier: str = STEP, start: Tensor | None = None, compensate: float = 0.0, momentum: float = 0.0
) -> Shard:
    recipe = Recipe.of(torch.optim.SGD([torch.zeros(2)], lr=1.0, momentum=momentum)) if applier == STEP else None
    shard = Shard.create(folder / "shard", PART, applier, recipe, compensate)
    shard.fill(torch.zeros(PART.count) if start is None else start)
    return shard


def gradients(*seeds: int) -> dict[int, Tensor]:
    return {worker: padded(whole(seed, 233)) for worker, seed in enumerate(seeds)}


def padded(values: Tensor, part: Part = PART) -> Tensor:
    flat = torch.zeros(part.count)
    flat[: values.numel()] = values
    return flat


def test_the_mean_is_added_up_in_the_order_given_and_then_divided(tmp_path: Path) -> None:
    shard, slots = shard_of(tmp_path), {w: torch.rand(PART.count) for w in range(3)}
    shard.obey(Apply(tuple(Contribution(w, 1) for w in range(3)), divisor=3.0), slots)
    expected = -((slots[0] + slots[1] + slots[2]) / 3.0)
    assert torch.equal(shard.params[:233], expected[:233])
    assert shard.version == 1 and shard.resume().seqs == {0: 1, 1: 1, 2: 1}


def test_what_is_held_counts_with_its_own_weight(tmp_path: Path) -> None:
    shard, slots = shard_of(tmp_path), gradients(1, 2, 3)
    shard.obey(Hold(Contribution(0, 1, 0.5)), slots)
    shard.obey(Hold(Contribution(1, 1, 0.25)), slots)
    assert shard.version == 0 and (shard.resume().held, shard.resume().held_scale) == (2, 0.75)
    shard.obey(Apply((Contribution(2, 1, 1.0),), divisor=1.75, scale=1.75 / 3, held=2), slots)
    expected = -(slots[0] * 0.5 + slots[1] * 0.25 + slots[2]) / 3
    assert torch.allclose(shard.params, expected, atol=1e-6)
    assert (shard.resume().held, shard.resume().held_scale, shard.version) == (0, 0.0, 1)


@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad"])
def test_the_scale_multiplies_the_change_and_not_the_state(name: str, tmp_path: Path) -> None:
    recipe = Recipe.of(getattr(torch.optim, name)([torch.zeros(2)], lr=0.5))
    start, slots = padded(whole(7, 233)), gradients(1)
    pair = [Shard.create(tmp_path / f"{scale}", PART, STEP, recipe) for scale in (1.0, 0.25)]
    for shard, scale in zip(pair, (1.0, 0.25), strict=True):
        shard.fill(start)
        shard.obey(Apply((Contribution(0, 1),), scale=scale), slots)
    whole_change, quarter = (shard.params - start for shard in pair)
    assert torch.allclose(quarter, whole_change * 0.25, atol=1e-6)
    states = [{k: v for k, v in shard.dump().tensors.items() if k != "params"} for shard in pair]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert shard.recipe is not None and shard.recipe.groups[0]["lr"] == 0.5


@settings(max_examples=25)
@given(order=st.permutations([(w, s) for w in range(3) for s in range(1, 4)]), again=st.integers(0, 8))
def test_downpour_comes_to_the_same_in_any_order(
    order: list[tuple[int, int]], again: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """w_T == w_0 - sum of the changes, exactly."""
    shard = shard_of(tmp_path_factory.mktemp("downpour"), start=padded(whole(7, 233)))
    total = padded(whole(7, 233))
    for worker, seq in order:
        gradient = padded(whole(10 * worker + seq, 233))
        shard.obey(Apply((Contribution(worker, seq),)), {worker: gradient})
        total -= gradient
    assert torch.equal(shard.params, total) and shard.version == 9


def test_adding_needs_no_optimizer(tmp_path: Path) -> None:
    shard, slots = shard_of(tmp_path, ADD, padded(whole(7, 233))), gradients(1, 2)
    shard.obey(Apply((Contribution(0, 1),), scale=0.5), slots)
    shard.obey(Apply((Contribution(1, 1),)), slots)
    assert torch.equal(shard.params, padded(whole(7, 233)) + slots[0] * 0.5 + slots[1])


def test_the_mean_alone_is_given_back(tmp_path: Path) -> None:
    shard, slots = shard_of(tmp_path, MEAN), gradients(1, 2)
    for seq in (1, 2):
        shard.obey(Apply((Contribution(0, seq), Contribution(1, seq)), divisor=2.0), slots)
        assert torch.equal(shard.params[:233], ((slots[0] + slots[1]) / 2)[:233])
    shard.obey(Apply((Contribution(1, 3),)), slots)
    assert torch.equal(shard.params[:233], slots[1][:233])


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 1.0])
def test_an_elastic_exchange_conserves_and_shrinks_the_gap(alpha: float, tmp_path: Path) -> None:
    centre, x = padded(whole(7, 233)), padded(whole(1, 233))
    shard, slots = shard_of(tmp_path, ELASTIC, centre), {0: x.clone()}
    shard.obey(Apply((Contribution(0, 1),), scale=alpha), slots)
    moved = x - slots[0]  # the worker takes off what was left in its slot
    assert torch.equal(moved + shard.params, x + centre)
    assert torch.equal(moved - shard.params, (1 - 2 * alpha) * (x - centre))
    if alpha in (0.0, 1.0):
        assert torch.equal(shard.params, centre if alpha == 0 else x), "nothing, or a swap"


def test_delay_compensation_adds_what_the_paper_says(tmp_path: Path) -> None:
    start, slots = padded(whole(7, 233)), gradients(1, 2)
    shard = shard_of(tmp_path, start=start, compensate=0.5)
    shard.note_read(0)
    shard.note_read(1)
    shard.obey(Apply((Contribution(0, 1),)), slots)
    assert torch.equal(shard.params, start - slots[0]), "nothing has moved for the first"
    again = Shard.open(shard.path)  # what they read outlives the server
    now, gradient = again.params.clone(), slots[1]
    again.obey(Apply((Contribution(1, 1),)), slots)
    assert torch.equal(again.params, now - (gradient + 0.5 * gradient * gradient * (now - start)))
    again.note_read(1)
    again.unlink()
    assert list(tmp_path.iterdir()) == []


def test_the_padding_stays_zero(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, momentum=0.9)
    for seq in range(1, 4):
        shard.obey(Apply((Contribution(0, seq),)), {0: torch.ones(PART.count)})
    assert torch.equal(shard.params[233:], torch.zeros(PART.count - 233))


def test_members_and_clocks_are_remembered(tmp_path: Path) -> None:
    shard = shard_of(tmp_path)
    shard.remember({0: 0, 1: 0, 7: 4})
    shard.obey(Apply((Contribution(1, 5, clock=9),)), gradients(1, 2))
    shard.remember({1: 9, 7: 4})
    resume = Shard.open(shard.path).resume()
    assert resume.clocks == {1: 9, 7: 4} and resume.seqs == {1: 5} and resume.version == 1


def test_a_worker_beyond_the_table_is_refused_before_anything_changes(tmp_path: Path) -> None:
    shard = shard_of(tmp_path)
    with pytest.raises(ValueError, match=f"worker {MAX_WORKERS} does not fit"):
        shard.obey(Apply((Contribution(MAX_WORKERS, 1),)), {MAX_WORKERS: torch.ones(PART.count)})
    assert shard.pending() is None and shard.version == 0


def test_an_optimizer_goes_with_stepping_only(tmp_path: Path) -> None:
    recipe = Recipe.of(torch.optim.SGD([torch.zeros(2)], lr=1.0))
    for applier, given_recipe in ((STEP, None), (ADD, recipe), ("fold", None)):
        with pytest.raises(BadOptimizer, match="give a recipe with 'step'"):
            Shard.create(tmp_path / "shard", PART, applier, given_recipe)


def test_a_file_that_is_no_shard_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"hello")
    (tmp_path / "long").write_bytes(bytes(200_000))
    for name in ("short", "long"):
        with pytest.raises(BadCheckpoint, match="is no shard"):
            Shard.open(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        Shard.open(tmp_path / "none")


def test_a_new_shard_takes_nothing_over_from_an_old_one(tmp_path: Path) -> None:
    old = shard_of(tmp_path, compensate=0.5)
    old.obey(Hold(Contribution(0, 1)), gradients(1))
    old.note_read(0)
    new = shard_of(tmp_path)
    assert (new.version, new.resume().held, new.resume().seqs) == (0, 0, {})
    assert [file.name for file in tmp_path.iterdir()] == ["shard"]


def test_a_server_with_nothing_to_hold_is_harmless(tmp_path: Path) -> None:
    layout = Layout.of([ParamInfo("a", 5)], servers=3)
    recipe = Recipe.of(torch.optim.Adam([torch.zeros(2)]))
    shard = Shard.create(tmp_path / "shard", layout.part(2), STEP, recipe)
    shard.fill(torch.zeros(0))
    shard.obey(Apply((Contribution(0, 1),)), {0: torch.zeros(0)})
    assert shard.version == 1 and shard.recover({}) and Shard.open(shard.path).version == 1
    assert Shard.reading(shard.path).copy([]) == 1
