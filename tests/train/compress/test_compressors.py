"""What every squeezer promises: nothing is lost, codes have the size they say, errors survive a checkpoint."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.errors import BadSpec
from shoal.train import compress
from shoal.train.compress import Compressor, Halves, OneBit, TopK

EVERY = ("fp16", "bf16", "topk", "onebit")


def make(name: str, ratio: float = 0.25) -> Compressor:
    made = compress.make({"compress": name, "ratio": ratio})
    assert made is not None
    return made


def whole_numbers(numel: int, seed: int) -> torch.Tensor:
    return torch.randint(-64, 65, (numel,), generator=torch.Generator().manual_seed(seed)).float()


def decoded(one: Compressor, code: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    out = torch.full_like(like, 7.0)
    one.decode(bytearray(code.numpy()), out)
    return out


def test_none_is_nothing() -> None:
    assert compress.make({"compress": "none"}) is None
    assert compress.reducer({"compress": "none"}) is None


def test_powersgd_has_no_code_for_one_sender() -> None:
    with pytest.raises(BadSpec, match="choose fp16"):
        compress.make({"compress": "powersgd"})


@given(name=st.sampled_from(EVERY), numel=st.integers(1, 5000), steps=st.integers(1, 5), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_what_was_sent_and_the_error_left_are_the_sum_of_the_gradients(
    name: str, numel: int, steps: int, seed: int
) -> None:
    one, sent, given_in = make(name), torch.zeros(numel), torch.zeros(numel)
    for step in range(steps):
        gradient = whole_numbers(numel, seed + step)
        sent += decoded(one, one.encode("a", gradient), gradient)
        given_in += gradient
    torch.testing.assert_close(sent + one.errors["a"], given_in, rtol=1e-4, atol=1e-2)
    if name == "topk":
        assert torch.equal(sent + one.errors["a"], given_in)


@given(numel=st.integers(1, 3000), ratio=st.floats(1e-3, 1.0), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_topk_contracts(numel: int, ratio: float, seed: int) -> None:
    x = torch.randn(numel, generator=torch.Generator().manual_seed(seed))
    one = TopK(ratio)
    left = (x - decoded(one, one.encode("a", x), x)).square().sum()
    assert left <= (1 - one.kept(numel) / numel) * x.square().sum() * (1 + 1e-5) + 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_topk_with_ratio_one_is_no_compression(dtype: torch.dtype) -> None:
    x = torch.randn(100).to(dtype)
    one = TopK(1.0)
    assert torch.equal(decoded(one, one.encode("a", x), x), x)
    assert not one.errors["a"].any()


def test_onebit_sends_the_sign_and_the_mean_size_of_each_block() -> None:
    x = torch.cat([torch.tensor([3.0, -1.0]).repeat(2048), torch.tensor([100.0, -300.0])])
    one = OneBit()
    out = decoded(one, one.encode("a", x), x)
    assert torch.equal(out[:4096], torch.tensor([2.0, -2.0]).repeat(2048))
    assert torch.equal(out[4096:], torch.tensor([200.0, -200.0]))


@given(numel=st.integers(1, 9000), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=20)
def test_onebit_is_never_farther_off_than_nothing(numel: int, seed: int) -> None:
    x = torch.randn(numel, generator=torch.Generator().manual_seed(seed))
    one = OneBit()
    assert (x - decoded(one, one.encode("a", x), x)).norm() <= x.norm() * (1 + 1e-5)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("numel", [1, 7, 8, 4095, 4096, 4097])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_codes_have_the_size_they_say(name: str, numel: int, dtype: torch.dtype) -> None:
    one, x = make(name), torch.randn(numel).to(dtype)
    code = one.encode("a", x)
    assert code.dtype == torch.uint8 and len(code) == one.size(x)
    assert decoded(one, code, x).dtype == dtype


@pytest.mark.parametrize("name", EVERY)
def test_the_gradient_is_left_alone_and_codes_outlive_the_next(name: str) -> None:
    one, x = make(name), torch.arange(-50.0, 50.0)
    before = x.clone()
    first = one.encode("a", x)
    kept = first.clone()
    one.encode("a", x * 3)
    assert torch.equal(x, before) and torch.equal(first, kept)


@pytest.mark.parametrize("name", EVERY)
def test_each_key_has_an_error_of_its_own(name: str) -> None:
    one, alone, x = make(name), make(name), torch.randn(100)
    one.encode("b", torch.randn(100))
    one.encode("a", x)
    alone.encode("a", x)
    assert torch.equal(one.errors["a"], alone.errors["a"])
    one.forget("a")
    assert list(one.errors) == ["b"]


@pytest.mark.parametrize("name", EVERY)
def test_errors_survive_a_checkpoint(name: str) -> None:
    one, x, y = make(name), torch.randn(100), torch.randn(100)
    one.encode("a", x)
    other = make(name)
    other.load(one.state())
    assert torch.equal(one.encode("a", y), other.encode("a", y))


@pytest.mark.parametrize("name", EVERY)
def test_what_is_not_a_number_is_sent_and_not_kept(name: str) -> None:
    one, x = make(name, ratio=0.5), torch.tensor([1.0, float("nan"), 2.0, float("inf")])
    out = decoded(one, one.encode("a", x), x)
    assert not out.isfinite().all()
    assert one.errors["a"].isfinite().all()
    assert decoded(one, one.encode("a", torch.ones(4)), x).isfinite().all()


def test_beyond_the_range_of_halves_the_rest_follows() -> None:
    one, x = Halves("fp16"), torch.tensor([100_000.0, 1.0])
    first = decoded(one, one.encode("a", x), x)
    assert first[0] == 65504.0
    second = decoded(one, one.encode("a", torch.zeros(2)), x)
    assert first[0] + second[0] + one.errors["a"][0] == 100_000.0


def test_another_length_begins_with_no_error() -> None:
    one = TopK(0.1)
    one.encode("a", torch.randn(100))
    one.encode("a", torch.ones(10))
    assert one.errors["a"].sum() == 9.0
