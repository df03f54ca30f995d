"""`run.shard`: every kind of loader, cut by rank, epoch by epoch; a world of one reads it as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from shoal.train.errors import Disagreement
from tests.train.data.feeds import Flow, Numbers, feed, in_step, loader, numbers


def every(size: int, make: Any, strategy: str = "ps-async", epochs: int = 1) -> list[list[list[list[int]]]]:
    """What each rank of an asynchronous strategy reads, epoch by epoch."""
    result = []
    for rank in range(size):
        one, own, passes = feed(rank, size, strategy), make(), []
        for epoch in range(epochs):
            one.tally.begin_epoch(epoch)
            passes.append(numbers(one.shard(own)))
        result.append(passes)
    return result


def samples(parts: list[list[list[list[int]]]], epoch: int = 0) -> Counter[int]:
    return Counter(number for part in parts for batch in part[epoch] for number in batch)


# -- a world of one ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("generator", [False, True])
def test_a_world_of_one_reads_the_loader_bit_for_bit(shuffle: bool, generator: bool) -> None:
    def run(through_feed: bool) -> tuple[list[Any], torch.Tensor]:
        torch.manual_seed(5)
        own = loader(11, shuffle=shuffle, generator=torch.Generator().manual_seed(9) if generator else None)
        one = feed()
        read = []
        for epoch in range(3):
            one.tally.begin_epoch(epoch)
            read.append(numbers(one.shard(own) if through_feed else own))
        return read, torch.rand(4)

    plain, mine = run(False), run(True)
    assert plain[0] == mine[0]
    assert torch.equal(plain[1], mine[1])


def test_a_world_of_one_takes_any_iterable() -> None:
    one = feed()
    assert list(one.shard(x for x in "abc")) == ["a", "b", "c"]
    assert list(one.shard([1, 2])) == [1, 2]
    assert len(one.shard([1, 2])) == 2


# -- map-style loaders -------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 40), st.integers(1, 5), st.integers(1, 4), st.booleans(), st.booleans())
def test_workers_on_their_own_read_every_sample_exactly_once(
    count: int, batch: int, size: int, drop_last: bool, shuffle: bool
) -> None:
    make = lambda: loader(max(count, 1), batch, drop_last=drop_last, shuffle=shuffle)  # noqa: E731
    parts = every(size, make)
    seen = samples(parts)
    assert all(times == 1 for times in seen.values())
    if not drop_last:
        assert set(seen) == set(range(max(count, 1)))
    else:
        assert all(len(b) == batch for part in parts for b in part[0])


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 40), st.integers(1, 5), st.integers(2, 4), st.booleans(), st.booleans())
def test_workers_in_step_read_every_sample_and_end_together(
    count: int, batch: int, size: int, drop_last: bool, shuffle: bool
) -> None:
    read = in_step(size, lambda one: numbers(one.shard(loader(count, batch, drop_last=drop_last, shuffle=shuffle))))
    assert len({len(part) for part in read}) == 1
    seen = Counter(number for part in read for b in part for number in b)
    if drop_last:
        assert all(times == 1 for times in seen.values())
    else:
        assert set(seen) == set(range(count))
        if count >= size and batch > 1:
            assert all(times == 1 for times in seen.values())


def test_the_order_is_shuffled_anew_in_each_epoch_and_the_same_for_all() -> None:
    parts = every(2, lambda: loader(32, shuffle=True), epochs=2)
    for epoch in range(2):
        assert samples(parts, epoch) == Counter(range(32))
    assert parts[0][0] != parts[0][1]
    assert sorted(n for b in parts[0][0] for n in b) != list(range(0, 32, 2))


def test_a_second_pass_in_one_epoch_has_an_order_of_its_own() -> None:
    one = feed(0, 2)
    own = loader(32, shuffle=True)
    assert numbers(one.shard(own)) != numbers(one.shard(own))


def test_workers_in_step_follow_the_seed_of_the_first() -> None:
    def read(one: Any) -> list[Any]:
        return numbers(one.shard(loader(16, shuffle=True)))

    torch.manual_seed(7)
    first = in_step(2, read)
    torch.manual_seed(7)
    assert in_step(2, read) == first
    torch.manual_seed(8)
    assert in_step(2, read) != first


def test_a_seed_can_be_given() -> None:
    read = [numbers(feed(0, 2).shard(loader(16, shuffle=True), seed=seed)) for seed in (1, 1, 2)]
    assert read[0] == read[1] != read[2]


def test_drawing_an_order_uses_up_nobodys_random_numbers() -> None:
    generator = torch.Generator().manual_seed(3)
    one, own = feed(0, 2), loader(16, sampler=RandomSampler(Numbers(16), generator=generator))
    before = generator.get_state()
    numbers(one.shard(own))
    assert torch.equal(generator.get_state(), before)


def test_samplers_of_any_kind_are_dealt() -> None:
    weights = torch.ones(12)
    weighted = every(3, lambda: loader(12, 2, sampler=WeightedRandomSampler(weights.tolist(), 12, replacement=False)))
    assert samples(weighted) == Counter(range(12))
    subset = every(2, lambda: loader(12, 2, sampler=[3, 1, 4, 1, 5]))
    assert samples(subset) == Counter([3, 1, 4, 1, 5])


class Pairs:
    """A batch sampler of the user's own: batches that must stay whole."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[2 * n, 2 * n + 1] for n in range(self.count)])

    def __len__(self) -> int:
        return self.count


def test_batches_of_a_batch_sampler_stay_whole() -> None:
    make = lambda: DataLoader(Numbers(14), batch_sampler=Pairs(7))  # type: ignore[arg-type]  # noqa: E731
    parts = every(3, make)
    assert samples(parts) == Counter(range(14))
    assert all(b[1] == b[0] + 1 for part in parts for b in part[0])
    together = in_step(3, lambda one: numbers(one.shard(make())))
    assert [len(part) for part in together] == [3, 3, 3]
    assert {b[0] for part in together for b in part} == set(range(0, 14, 2))


class Cut(BatchSampler):
    """Another class than torch's, so another meaning."""


def test_a_subclass_of_the_batch_sampler_is_dealt_by_batches() -> None:
    make = lambda: DataLoader(Numbers(9), batch_sampler=Cut(SequentialSampler(Numbers(9)), 2, False))  # noqa: E731
    assert [part[0] for part in every(2, make)] == [[[0, 1], [4, 5], [8]], [[2, 3], [6, 7]]]


def test_a_loader_without_batches_is_dealt_by_samples() -> None:
    parts = every(2, lambda: DataLoader(Numbers(5), batch_size=None))
    assert [part[0] for part in parts] == [[0, 2, 4], [1, 3]]


class Forever:
    def __iter__(self) -> Iterator[int]:
        while True:
            yield int(torch.randint(0, 100, ()))


def test_a_sampler_without_length_is_drawn_as_it_goes() -> None:
    def first(rank: int) -> list[Any]:
        torch.manual_seed(rank)
        batches = iter(feed(rank, 2).shard(loader(100, 2, sampler=Forever())))
        return [next(batches).tolist() for _ in range(4)]

    alone = iter(feed(0, 2).shard(loader(100, 2, sampler=Forever())))
    zero, one = first(0), first(1)
    assert zero != one
    assert next(alone).tolist() == zero[0]
    before = torch.get_rng_state()
    next(alone)
    assert torch.equal(torch.get_rng_state(), before)


def test_everything_the_user_chose_is_kept() -> None:
    class Mine(DataLoader[Any]):
        pass

    own = Mine(Numbers(8), batch_size=2, collate_fn=lambda batch: ("mine", batch), num_workers=0)
    assert numbers(feed(1, 2).shard(own)) == [("mine", [1, 3]), ("mine", [5, 7])]


def test_workers_of_a_loader_are_used_and_kept() -> None:
    own = loader(12, 2, num_workers=1, persistent_workers=True, shuffle=True)
    one = feed(0, 2)
    shard = one.shard(own)
    seen = [n for b in numbers(shard) for n in b]
    kept = shard._source._copy._iterator  # type: ignore[attr-defined]
    seen_again = [n for b in numbers(shard) for n in b]
    assert shard._source._copy._iterator is kept is not None  # type: ignore[attr-defined]
    assert len(seen) == len(seen_again) == 6
    assert own._iterator is None


def test_a_distributed_sampler_is_left_as_it_is_but_learns_the_epoch() -> None:
    def read(rank: int, epoch: int) -> list[Any]:
        sampler = DistributedSampler(Numbers(12), num_replicas=2, rank=rank, shuffle=True, seed=4)
        sampler.set_epoch(epoch)
        return numbers(loader(12, 3, sampler=sampler))

    for rank in range(2):
        own = loader(12, 3, sampler=DistributedSampler(Numbers(12), num_replicas=2, rank=rank, shuffle=True, seed=4))
        one = feed(rank, 2)
        for epoch in range(3):
            one.tally.begin_epoch(epoch)
            assert numbers(one.shard(own)) == read(rank, epoch)


def test_an_epoch_that_the_user_sets_is_the_users() -> None:
    sampler = DistributedSampler(Numbers(12), num_replicas=2, rank=0, shuffle=True)
    one, own = feed(0, 2), loader(12, 3, sampler=sampler)
    numbers(one.shard(own))
    sampler.set_epoch(17)
    numbers(one.shard(own))
    assert sampler.epoch == 17


# -- iterables ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_dataset_is_dealt_sample_by_sample(workers: int) -> None:
    make = lambda: DataLoader(Flow(13, by_worker=True), batch_size=2, num_workers=workers)  # noqa: E731
    assert samples(every(2, make)) == Counter(range(13))


def test_an_iterable_dataset_that_ignores_its_workers_gives_what_it_would_give_alone() -> None:
    plain = Counter(n for b in numbers(DataLoader(Flow(6), batch_size=2, num_workers=2)) for n in b)
    assert samples(every(2, lambda: DataLoader(Flow(6), batch_size=2, num_workers=2))) == plain


def test_attributes_of_an_iterable_dataset_can_be_reached_from_a_worker() -> None:
    from shoal.train.data.loaders import Slice

    inner = Flow(6)
    cut = Slice(inner, 0, 2)
    cut.count = 4
    assert inner.count == 4 and cut.count == 4 and list(cut) == [0, 2]


def test_iterables_in_step_end_with_the_shortest() -> None:
    def read(one: Any) -> int:
        return len(numbers(one.shard(DataLoader(Flow(11), batch_size=2))))

    assert in_step(2, read) == [3, 3]
    assert in_step(3, lambda one: list(one.shard(iter(range(11))))) == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_lists_of_batches_are_dealt_too() -> None:
    assert [list(feed(rank, 2).shard([10, 11, 12])) for rank in range(2)] == [[10, 12], [11]]
    assert in_step(2, lambda one: list(one.shard([10, 11, 12]))) == [[10, 12], [11, 11]]
    assert list(feed(1, 2).shard(x for x in "abcd")) == ["b", "d"]


def test_data_that_differs_between_workers_is_each_ones_own_and_ends_with_the_shortest() -> None:
    def read(one: Any) -> list[int]:
        return list(one.shard([one.world.rank * 10 + n for n in range(5 - 2 * one.world.rank)]))

    assert in_step(2, read) == [[0, 1, 2], [10, 11, 12]]


def test_each_workers_own_data_is_not_cut() -> None:
    def read(one: Any) -> list[list[int]]:
        return numbers(one.shard(loader(8 - 4 * one.world.rank, 2), sharded=True))

    assert in_step(2, read) == [[[0, 1], [2, 3]], [[0, 1], [2, 3]]]
    assert numbers(feed(1, 2).shard(loader(6, 2), sharded=True)) == [[0, 1], [2, 3], [4, 5]]


def test_different_kinds_of_loaders_are_noticed() -> None:
    def read(one: Any) -> None:
        list(one.shard([1, 2] if one.world.rank else iter([1, 2])))

    with pytest.raises(Disagreement, match="poured on worker-0 and listed"):
        in_step(2, read)


def test_the_copies_of_a_cut_model_read_the_same() -> None:
    one = feed(1, 2, "ps-async")
    one.place = lambda: (0, 1)
    assert numbers(one.shard(loader(4, 2))) == [[0, 1], [2, 3]]


# -- what is counted ---------------------------------------------------------------------------------------------------


def test_batches_and_samples_are_counted() -> None:
    one = feed(0, 2)
    shard = one.shard(loader(10, 2))
    assert len(shard) == 3
    numbers(shard)
    assert (one.tally.batches, one.tally.samples, one.tally.length) == (3, 5, 3)
    numbers(one.shard(loader(4, 2)))  # the second loader is not what is trained on
    assert (one.tally.batches, one.tally.samples) == (3, 5)


def test_an_unknown_length_says_so() -> None:
    with pytest.raises(TypeError, match="generator has no length"):
        len(feed(0, 2).shard(x for x in "abc"))


def test_a_loop_that_was_left_is_not_under_way() -> None:
    one = feed(0, 2)
    for _ in one.shard(loader(10, 2)):
        assert one.unfinished()
        break
    assert not one.unfinished()


def test_a_loader_made_anew_in_each_epoch_keeps_its_place() -> None:
    one, orders = feed(0, 2), []
    for epoch in range(3):
        one.tally.begin_epoch(epoch)
        orders.append(numbers(one.shard(loader(32, shuffle=True))))
        numbers(one.shard(loader(4)))
    assert len(one._slots) == 2
    again = feed(0, 2)
    again.tally.begin_epoch(2)
    assert numbers(again.shard(loader(32, shuffle=True))) == orders[2]
