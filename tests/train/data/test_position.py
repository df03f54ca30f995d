"""Where a loader stands: a run that was cut off in the middle of an epoch reads what is left, and only that."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from shoal.train.checkpoint import tree
from shoal.train.data import Feed
from tests.train.data.feeds import Flow, feed, in_step, loader, numbers


class Noisy(Dataset[float]):
    """Samples that use up random numbers, as augmentation does."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> float:
        return index + float(torch.rand(()))


def kept(one: Feed) -> Any:
    """The state as a checkpoint gives it back."""
    tensors: dict[str, torch.Tensor] = {}
    packed = json.dumps(tree.pack(one.state(), "feed", tensors))
    return tree.unpack(json.loads(packed), {name: value.clone() for name, value in tensors.items()})


def cut_off(one: Feed, own: Any, epoch: int, steps: int) -> tuple[list[Any], Any]:
    """What is read before the end of the process, and the state that was saved then."""
    one.tally.begin_epoch(epoch)
    read: list[Any] = []
    state = None
    for batch in one.shard(own):
        read.append(batch.tolist() if isinstance(batch, torch.Tensor) else batch)
        if len(read) == steps:
            assert one.unfinished()
            state = kept(one)
            break
    return read, state


def go_on(one: Feed, own: Any, epoch: int, state: Any) -> list[Any]:
    one.load(state)
    one.tally.begin_epoch(epoch)
    return numbers(one.shard(own))


def plain_epochs(own: Any, epochs: int) -> tuple[list[Any], torch.Tensor]:
    torch.manual_seed(3)
    read = [numbers(own) for _ in range(epochs)]
    return read, torch.rand(2)


KINDS: dict[str, Any] = {
    "shuffled": lambda: DataLoader(Noisy(), batch_size=3, shuffle=True),
    "in order": lambda: DataLoader(Noisy(), batch_size=3),
    "own generator": lambda: DataLoader(
        Noisy(), batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(8)
    ),
    "iterable": lambda: DataLoader(Flow(20), batch_size=3),
    "list": lambda: list(range(7)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [1, 4])
def test_a_world_of_one_goes_on_bit_for_bit(kind: str, steps: int) -> None:
    expected, after = plain_epochs(KINDS[kind](), 3)
    torch.manual_seed(3)
    one, own = feed(), KINDS[kind]()
    one.tally.begin_epoch(0)
    first = numbers(one.shard(own))
    read, state = cut_off(one, own, 1, steps)
    torch.manual_seed(99)  # another process: other random numbers, fresh objects
    torch.rand(5)
    again, own = feed(), KINDS[kind]()
    rest = go_on(again, own, 1, state)
    again.tally.begin_epoch(2)
    assert [first, read + rest, numbers(again.shard(own))] == expected
    assert torch.equal(torch.rand(2), after)


@pytest.mark.parametrize("kind", KINDS)
def test_a_world_of_one_goes_on_with_the_next_epoch(kind: str) -> None:
    expected, after = plain_epochs(KINDS[kind](), 2)
    torch.manual_seed(3)
    one = feed()
    first = numbers(one.shard(KINDS[kind]()))
    state = kept(one)
    torch.manual_seed(99)
    assert [first, go_on(feed(), KINDS[kind](), 1, state)] == expected
    assert torch.equal(torch.rand(2), after)


@settings(deadline=None, max_examples=25)
@given(st.integers(8, 40), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.data())
def test_another_number_of_workers_reads_what_is_left(
    count: int, batch: int, before: int, after: int, data: st.DataObject
) -> None:
    """From `before` workers in step (or one) to `after`, with everything read once (where nobody must repeat)."""
    most = count // (before * batch)
    steps = data.draw(st.integers(1, most)) if most else 1
    # One worker draws its order from the random numbers of the process, which threads would share.
    make = lambda: loader(count, batch, shuffle=before > 1 or after == 1)  # noqa: E731

    def first(one: Feed) -> tuple[list[Any], Any]:
        return cut_off(one, make(), 2, steps)

    parts = in_step(before, first) if before > 1 else [first(feed())]
    state = parts[0][1]

    def second(one: Feed) -> list[Any]:
        return go_on(one, make(), 2, state if one.world.rank >= before else parts[one.world.rank][1])

    rest = in_step(after, second) if after > 1 else [second(feed())]
    seen = Counter(n for read, _ in parts for b in read for n in b)
    more = Counter(n for read in rest for b in read for n in b)
    assert set(seen) | set(more) == set(range(count))
    left = count - sum(seen.values())
    if batch > 1 and (left >= after or after == 1):
        assert seen + more == Counter(range(count))


def test_workers_take_up_the_shuffled_order_of_one() -> None:
    torch.manual_seed(6)
    before, state = cut_off(feed(), loader(30, 4, shuffle=True), 1, 3)
    rest = [go_on(feed(rank, 3), loader(30, 4, shuffle=True), 1, state) for rank in range(3)]
    seen = Counter(n for b in before for n in b) + Counter(n for read in rest for b in read for n in b)
    assert seen == Counter(range(30))


def test_the_same_workers_go_on_as_if_nothing_had_been() -> None:
    whole = in_step(3, lambda one: numbers(one.shard(loader(29, 3, shuffle=True), seed=1)))

    def first(one: Feed) -> tuple[list[Any], Any]:
        own, read = loader(29, 3, shuffle=True), []
        for batch in one.shard(own, seed=1):
            read.append(batch.tolist())
            if len(read) == 2:
                return read, kept(one)
        raise AssertionError

    parts = in_step(3, first)
    rest = in_step(3, lambda one: go_on(one, loader(29, 3, shuffle=True), 0, parts[one.world.rank][1]))
    assert [read + rest[rank] for rank, (read, _) in enumerate(parts)] == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_goes_on_also_with_another_number_of_workers(workers: int) -> None:
    make = lambda: DataLoader(Flow(24, by_worker=True), batch_size=2, num_workers=workers)  # noqa: E731
    parts = in_step(2, lambda one: cut_off(one, make(), 0, 3))
    seen = Counter(n for read, _ in parts for b in read for n in b)
    rest = go_on(feed(), make(), 0, parts[0][1])
    assert seen + Counter(n for b in rest for n in b) == Counter(range(24))
    same = in_step(2, lambda one: go_on(one, make(), 0, parts[one.world.rank][1]))
    assert seen + Counter(n for read in same for b in read for n in b) == Counter(range(24))


def test_workers_on_their_own_go_on_each_from_its_own_place() -> None:
    parts = [cut_off(feed(rank, 2), loader(20, 2, shuffle=True), 0, steps) for rank, steps in ((0, 2), (1, 4))]
    rest = [go_on(feed(rank, 2), loader(20, 2, shuffle=True), 0, parts[rank][1]) for rank in range(2)]
    seen = Counter(n for read, _ in parts for b in read for n in b)
    assert seen + Counter(n for read in rest for b in read for n in b) == Counter(range(20))


def test_workers_on_their_own_in_another_number_start_the_epoch_over(caplog: pytest.LogCaptureFixture) -> None:
    _, state = cut_off(feed(0, 2), loader(20, 2, shuffle=True), 0, 2)
    rest = [go_on(feed(rank, 3), loader(20, 2, shuffle=True), 0, state) for rank in range(3)]
    assert Counter(n for read in rest for b in read for n in b) == Counter(range(20))
    assert "the epoch starts over" in caplog.text


def test_another_kind_of_loader_starts_over(caplog: pytest.LogCaptureFixture) -> None:
    _, state = cut_off(feed(0, 2), loader(20, 2), 0, 2)
    assert go_on(feed(0, 2), [1, 2, 3], 0, state) == [1, 3]
    assert "was indexed and is listed now" in caplog.text


def test_counts_go_on() -> None:
    one = feed()
    one.tally.begin_epoch(1)
    own = loader(20, 4)
    for _ in islice(one.shard(own), 3):
        state = kept(one)
    again = feed()
    again.load(state)
    again.tally.epoch = 1
    numbers(again.shard(loader(20, 4)))
    assert (again.tally.batches, again.tally.samples) == (5, 20)


def test_a_state_that_was_loaded_and_not_used_is_kept() -> None:
    _, state = cut_off(feed(0, 2), loader(20, 2, shuffle=True), 0, 2)
    again = feed(0, 2)
    again.load(state)
    again.shard(loader(20, 2, shuffle=True))
    third = feed(0, 2)
    assert len(go_on(third, loader(20, 2, shuffle=True), 0, kept(again))) == 3
