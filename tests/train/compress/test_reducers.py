"""The mean over a group of squeezed tensors: the same bits everywhere, exact where nothing was squeezed away."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from shoal.train import compress
from shoal.train.compress import PowerSGD, Reducer
from shoal.train.errors import PeerLost
from shoal.train.group.threads import ThreadGroup
from tests.train.ranks import run_ranks

EVERY = ("fp16", "bf16", "topk", "onebit", "powersgd")
SHAPES = ((40, 30), (7,), (3, 20, 5))


def make(name: str, ratio: float = 0.25, rank: int = 2) -> Reducer:
    made = compress.reducer({"compress": name, "ratio": ratio, "rank": rank})
    assert made is not None
    return made


def gradients(rank: int, step: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return [torch.randint(-8, 9, shape, generator=generator).float() for shape in SHAPES]


def reduced(name: str, size: int, steps: int = 1, **options: float) -> list[list[list[Tensor]]]:
    """By rank and step."""
    groups = ThreadGroup.make(size)

    def work(rank: int) -> list[list[Tensor]]:
        one, every = make(name, **options), []  # type: ignore[arg-type]
        for step in range(steps):
            tensors = gradients(rank, step)
            one.mean([(f"p{k}", tensor) for k, tensor in enumerate(tensors)], groups[rank])
            every.append(tensors)
        return every

    return run_ranks(size, work)


@pytest.mark.parametrize("name", EVERY)
def test_all_ranks_get_the_same_bits(name: str) -> None:
    first, *others = reduced(name, 3, steps=3)
    for other in others:
        for mine, theirs in zip(first, other, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("name", EVERY)
def test_over_many_steps_the_sum_of_the_means_is_right(name: str) -> None:
    """What one step does not carry the next ones do: the mean of the errors stays bounded."""
    size, steps = 2, 30
    found = reduced(name, size, steps=steps)[0]
    for place in range(len(SHAPES)):
        sent = sum(one[place] for one in found)
        true = sum(gradients(rank, step)[place] for rank in range(size) for step in range(steps)) / size
        assert isinstance(sent, Tensor) and isinstance(true, Tensor)
        assert (sent - true).norm() < 4 * gradients(0)[place].norm()


@given(size=st.integers(1, 4), seed=st.integers(0, 20))
@settings(deadline=None, max_examples=10)
def test_topk_with_ratio_one_is_the_plain_mean(size: int, seed: int) -> None:
    found = reduced("topk", size, ratio=1.0)
    for place in range(len(SHAPES)):
        true = sum(gradients(rank)[place] for rank in range(size)) / size
        assert isinstance(true, Tensor)
        torch.testing.assert_close(found[0][0][place], true, rtol=1e-6, atol=1e-6)


def test_powersgd_is_exact_on_matrices_of_its_rank() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(40, 2, generator=generator), torch.randn(2, 30, generator=generator)
    groups = ThreadGroup.make(2)

    def work(rank: int) -> Tensor:
        matrix = (rank + 1) * left @ right
        PowerSGD(2).mean([("w", matrix)], groups[rank])
        return matrix

    for found in run_ranks(2, work):
        torch.testing.assert_close(found, 1.5 * left @ right, rtol=1e-4, atol=1e-4)


def test_powersgd_keeps_what_it_could_not_send() -> None:
    """mean(e) + Σ m = Σ mean(g), matrix by matrix."""
    groups = ThreadGroup.make(3)

    def work(rank: int) -> tuple[Tensor, Tensor]:
        one, sent = PowerSGD(1), torch.zeros(40, 30)
        for step in range(5):
            matrix = gradients(rank, step)[0]
            one.mean([("w", matrix)], groups[rank])
            sent += matrix
        return sent, one.errors["w"]

    found = run_ranks(3, work)
    true = sum(gradients(rank, step)[0] for rank in range(3) for step in range(5)) / 3
    mean_error = sum(error for _, error in found) / 3
    torch.testing.assert_close(found[0][0] + mean_error, true, rtol=1e-4, atol=1e-3)


def test_powersgd_errors_do_not_pile_up_with_the_differences_between_workers() -> None:
    """Opposite gradients of rank one: the mean is zero, and so is what anyone has left."""
    generator = torch.Generator().manual_seed(0)
    outer = torch.outer(torch.randn(40, generator=generator), torch.randn(30, generator=generator))
    groups = ThreadGroup.make(2)

    def work(rank: int) -> float:
        one = PowerSGD(1)
        for _ in range(20):
            one.mean([("w", outer * (1 if rank else 1.001))], groups[rank])
        return float(one.errors["w"].norm() / outer.norm())

    assert max(run_ranks(2, work)) < 0.1


def test_powersgd_sends_vectors_and_small_matrices_whole() -> None:
    one = PowerSGD(4)
    assert one.pays(torch.empty(100, 100)) and one.pays(torch.empty(64, 3, 3, 3)) is True
    assert not one.pays(torch.empty(100)) and not one.pays(torch.empty(4, 100))


def test_powersgd_finds_its_way_out_of_a_zero_gradient() -> None:
    group = ThreadGroup.make(1)[0]
    one, matrix = PowerSGD(2), gradients(0)[0]
    one.mean([("w", torch.zeros(40, 30))], group)
    out = matrix.clone()
    one.mean([("w", out)], group)
    assert out.norm() > 0.1 * matrix.norm()


def test_a_name_keeps_its_error_in_other_company() -> None:
    """Buckets that are cut anew cost nothing."""
    group = ThreadGroup.make(1)[0]
    one, other = PowerSGD(1), PowerSGD(1)
    for reducer, cuts in ((one, [[0, 2]]), (other, [[2], [0]])):
        for cut in cuts:
            tensors = gradients(0)
            reducer.mean([(f"p{k}", tensors[k]) for k in cut], group)
    assert all(torch.equal(one.errors[name], other.errors[name]) for name in ("p0", "p2"))


@pytest.mark.parametrize("name", EVERY)
def test_errors_survive_a_checkpoint(name: str) -> None:
    group = ThreadGroup.make(1)[0]
    one, other = make(name), make(name)
    one.mean([(f"p{k}", tensor) for k, tensor in enumerate(gradients(0))], group)
    other.load(one.state())
    ours, theirs = gradients(0, 1), gradients(0, 1)
    one.mean([(f"p{k}", tensor) for k, tensor in enumerate(ours)], group)
    other.mean([(f"p{k}", tensor) for k, tensor in enumerate(theirs)], group)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("name", EVERY)
def test_a_member_that_left_does_not_count(name: str) -> None:
    groups = ThreadGroup.make(3)
    groups[1].leave()
    ratio = {"ratio": 1.0}

    def work(rank: int) -> list[Tensor]:
        tensors = [torch.full((2,), float(rank + 1))]
        make(name, **ratio).mean([("v", tensors[0])], groups[rank])
        return tensors

    for found in run_ranks([0, 2], work):
        assert torch.equal(found[0], torch.full((2,), 2.0))


@pytest.mark.parametrize("name", ["topk", "onebit", "fp16", "powersgd"])
def test_an_exchange_that_fails_leaves_the_errors_as_they_were(name: str) -> None:
    groups = ThreadGroup.make(2)

    def work(rank: int) -> bool:
        one = make(name)
        one.mean([(f"p{k}", tensor) for k, tensor in enumerate(gradients(rank))], groups[rank])
        before = one.state()
        if rank:
            groups[rank].die()
            return True
        with pytest.raises(PeerLost):
            one.mean([(f"p{k}", tensor) for k, tensor in enumerate(gradients(rank, 1))], groups[rank])
        return all(torch.equal(value, one.state()[key]) for key, value in before.items())

    assert all(run_ranks(2, work))


def test_halves_do_not_overflow_where_the_mean_does_not() -> None:
    groups = ThreadGroup.make(4)

    def work(rank: int) -> Tensor:
        tensor = torch.full((3,), 60_000.0)
        make("fp16").mean([("v", tensor)], groups[rank])
        return tensor

    assert all(torch.equal(one, torch.full((3,), 60_000.0)) for one in run_ranks(4, work))
