"""What every group keeps, as functions that all members run together: in threads here, in processes of their own as
`bargain.main()` in a worker. Values are whole numbers, so sums are exact in every type."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable

import torch
from torch import Tensor

from shoal.train.errors import Disagreement, PeerLost
from shoal.train.group.api import Group
from shoal.train.group.choose import make
from shoal.train.seeing import Seeing
from shoal.train.world import World

Check = Callable[[Group], None]

SIZES = (0, 1, 2, 7, 1000, 16_385, 100_003, 700_001)
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64)


def numbers(size: int, rank: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return ((torch.arange(size) + rank) % 5).to(dtype)


def total(group: Group, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.stack([numbers(size, rank, torch.float32) for rank in group.members()]).sum(0).to(dtype)


def knows_its_members(group: Group) -> None:
    assert group.members() == tuple(range(group.size))
    assert 0 <= group.rank < group.size


def sums_exactly(group: Group) -> None:
    for size in SIZES:
        tensor = numbers(size, group.rank)
        group.all_reduce(tensor)
        assert torch.equal(tensor, total(group, size)), f"{size} elements"


def sums_every_kind_of_number(group: Group) -> None:
    for dtype in TYPES:
        for size in (3, 300_001):
            tensor = numbers(size, group.rank, dtype)
            group.all_reduce(tensor)
            assert torch.equal(tensor, total(group, size, dtype)), f"{size} {dtype}"


def takes_the_mean(group: Group) -> None:
    for size in (5, 200_003):
        tensor = numbers(size, group.rank)
        group.all_reduce(tensor, "mean")
        assert torch.equal(tensor, total(group, size) / len(group.members()))
    whole = torch.full((3,), group.rank + 1)
    group.all_reduce(whole, "mean")
    assert whole.tolist() == [sum(range(1, group.size + 1)) // group.size] * 3, "whole numbers are rounded down"


def takes_the_least_the_greatest_and_the_product(group: Group) -> None:
    for size in (5, 200_003):
        every = torch.stack([numbers(size, rank) - 1 for rank in group.members()])
        for op, expected in (("min", every.amin(0)), ("max", every.amax(0)), ("product", every.prod(0))):
            tensor = numbers(size, group.rank) - 1
            group.all_reduce(tensor, op)
            assert torch.equal(tensor, expected), f"{op} of {size}"


def takes_arrays_of_numpy(group: Group) -> None:
    for size in (5, 300_001):
        array = numbers(size, group.rank).numpy()
        group.all_reduce(array)
        assert torch.equal(torch.from_numpy(array), total(group, size))
        rows = numbers(size * 2, group.rank).numpy().reshape(2, size).T
        group.broadcast(rows, 1)
        assert torch.equal(torch.from_numpy(rows.T.copy()).view(-1), numbers(size * 2, 1))
    half = numbers(7, group.rank, torch.float16).numpy()
    group.all_reduce(half, "mean")
    assert half.dtype.name == "float16"


def ends_bit_equal(group: Group) -> None:
    for size in (1001, 500_009):
        tensor = torch.randn(size, generator=torch.Generator().manual_seed(group.rank))
        group.all_reduce(tensor, "mean")
        digests = group.gather(hashlib.sha256(tensor.numpy().tobytes()).hexdigest())
        assert len(set(digests)) == 1, digests


def takes_any_shape(group: Group) -> None:
    for columns in (7, 1200):
        rows = numbers(100 * columns, group.rank).view(100, columns)
        across = rows.clone().t()
        group.all_reduce(across)
        assert torch.equal(across, total(group, 100 * columns).view(100, columns).t())
        every_other = rows[:, ::2]
        group.broadcast(every_other, group.size - 1)
        last = numbers(100 * columns, group.size - 1).view(100, columns)
        assert torch.equal(every_other, last[:, ::2])
        assert torch.equal(rows[:, 1::2], numbers(100 * columns, group.rank).view(100, columns)[:, 1::2])
    parameter = torch.nn.Parameter(torch.ones(4))
    group.all_reduce(parameter)
    assert parameter.tolist() == [float(group.size)] * 4 and parameter.requires_grad


def broadcasts_from_anyone(group: Group) -> None:
    for source in group.members():
        for size in (0, 1, 1000, 900_001):
            tensor = numbers(size, group.rank)
            group.broadcast(tensor, source)
            assert torch.equal(tensor, numbers(size, source)), f"{size} elements of worker-{source}"


def gathers_plain_data(group: Group) -> None:
    for value in (None, 1.5, {"a": [1, "ü"]}, "x" * 200_000 * (group.rank + 1)):
        assert group.gather(value if group.rank else [value])[1:] == [
            "x" * 200_000 * (rank + 1) if isinstance(value, str) else value for rank in range(1, group.size)
        ]
    assert group.gather(group.rank) == list(group.members())


def keeps_messages_in_order(group: Group) -> None:
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    for size in (0, 3, 1000):
        group.send(after, numbers(size, group.rank))
        group.send(after, numbers(size, group.rank + 1))
    for size in (0, 3, 1000):
        for more in (0, 1):
            out = torch.empty(size)
            group.receive(before, out)
            assert torch.equal(out, numbers(size, before + more))
    if group.rank == 0:
        group.send(1, numbers(1_000_003, 3, torch.float64))
    if group.rank == 1:
        out = torch.empty(1_000_003, dtype=torch.float64)
        group.receive(0, out)
        assert torch.equal(out, numbers(1_000_003, 3, torch.float64))
    group.gather(None)


def keeps_pace_over_many_calls(group: Group) -> None:
    """Calls of all kinds and sizes in one drawn order: no piece of one is taken for a piece of another."""
    dice = random.Random(5)
    for number in range(120):
        kind, size = dice.choice(("sum", "sum", "broadcast", "gather")), dice.choice((1, 50, 17_000, 60_000, 200_000))
        if kind == "gather":
            assert group.gather([number, group.rank]) == [[number, one] for one in group.members()]
            continue
        tensor = numbers(size, group.rank + number)
        if kind == "sum":
            group.all_reduce(tensor)
            expected = torch.stack([numbers(size, one + number) for one in range(group.size)]).sum(0)
        else:
            source = dice.randrange(group.size)
            group.broadcast(tensor, source)
            expected = numbers(size, source + number)
        assert torch.equal(tensor, expected), f"call {number}: {kind} of {size}"


def comes_to(group: Group, members: tuple[int, ...]) -> None:
    """A goodbye from another machine may still be on its way when a collective without that one is over."""
    end = time.monotonic() + 20
    while group.members() != members:
        assert time.monotonic() < end, group.members()
        time.sleep(0.001)


def goes_on_without_those_who_left(group: Group) -> None:
    """The last one. All but the lowest leave, one after another, each when it has seen the one before go."""
    for last in range(group.size - 1, 0, -1):
        if group.rank == last:
            group.leave()
            group.leave()
            return
        small, large = numbers(10, group.rank), numbers(300_001, group.rank)
        group.all_reduce(small, "mean")
        group.all_reduce(large)
        rest = range(last)
        comes_to(group, tuple(rest))
        assert torch.equal(small, torch.stack([numbers(10, rank) for rank in rest]).mean(0))
        assert torch.equal(large, torch.stack([numbers(300_001, rank) for rank in rest]).sum(0))
        assert group.gather(group.rank) == list(rest)
        group.broadcast(small, last - 1)
        try:
            group.receive(last, small)
        except PeerLost as lost:
            assert lost.who == [f"worker-{last}"]
        else:
            raise AssertionError("nothing comes from one who left")


def goes_on_when_the_lowest_leaves(group: Group) -> None:
    """In a group of its own. Whoever kept something for the others, or spoke for its machine, was the lowest."""
    large = numbers(300_001, group.rank)
    group.all_reduce(large)
    if group.rank == 0:
        group.leave()
        return
    rest = range(1, group.size)
    for size in (10, 300_001, 10):
        tensor = numbers(size, group.rank)
        group.all_reduce(tensor)
        assert torch.equal(tensor, torch.stack([numbers(size, rank) for rank in rest]).sum(0))
        group.broadcast(tensor, group.size - 1)
    comes_to(group, tuple(rest))
    assert group.gather(group.rank) == list(rest)


def notices_different_calls(group: Group) -> None:
    """In a group of its own: afterwards nobody can go on."""
    try:
        group.all_reduce(torch.ones(3 + group.rank // (group.size - 1)))
    except Disagreement as differs:
        assert "all-reduce of 3 float32" in differs.message and "all-reduce of 4 float32" in differs.message
    except PeerLost:
        pass  # another one noticed first and gave up
    else:
        raise AssertionError("one sums 4 elements, the others 3")


CHECKS: tuple[Check, ...] = (
    knows_its_members,
    sums_exactly,
    sums_every_kind_of_number,
    takes_the_mean,
    takes_the_least_the_greatest_and_the_product,
    takes_arrays_of_numpy,
    ends_bit_equal,
    takes_any_shape,
    broadcasts_from_anyone,
    gathers_plain_data,
    keeps_messages_in_order,
    keeps_pace_over_many_calls,
    goes_on_without_those_who_left,
)

ALONE: tuple[Check, ...] = (goes_on_when_the_lowest_leaves, notices_different_calls)  # each in a group of its own


def main() -> None:
    """In a worker of a job: all of them, in the group that the world gets."""
    world = World.read()
    group = make(world, Seeing())
    print("group", type(group).__name__, flush=True)
    for check in CHECKS:
        check(group)
        print(f"ok {check.__name__}", flush=True)
    group.leave()
    for check in ALONE:
        group = make(world, Seeing(), check.__name__)
        check(group)
        print(f"ok {check.__name__}", flush=True)
        group.leave()
