"""Local SGD, DiLoCo, Streaming DiLoCo, SlowMo, post-local SGD: a thread for each worker, whole numbers throughout."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from shoal.errors import BadSpec
from shoal.strategy import parse
from shoal.train.errors import BadCheckpoint, Disagreement, PeerLost
from shoal.train.group.threads import ThreadGroup
from shoal.train.local.fragment import Fragment
from shoal.train.sync.local_sgd import LocalSGD
from tests.train.ranks import Line, lone, run_ranks, setting, step

VALUES = ((8.0, 16.0, 24.0), (32.0, 40.0), (48.0,), (56.0, 64.0))
Grad = Callable[[int, int], float]


def plain(rank: int, number: int) -> float:
    """A gradient: whole, different for every worker and step."""
    return float((rank + 1) * (number % 3 + 1) * 4)


@dataclass
class Told:
    """What one worker has to tell."""

    model: Any
    sync: LocalSGD
    group: ThreadGroup
    history: list[Tensor] = field(default_factory=list)  # after each step
    final: Tensor | None = None  # after the flush


def train(
    strategy: str,
    size: int,
    steps: int | Sequence[int],
    gradient: Grad = plain,
    optimizer: Callable[[Any], Optimizer] = lambda model: SGD(model.parameters(), lr=1.0),
    epoch: Callable[[int], int] = lambda number: 0,
) -> list[Told]:
    groups = ThreadGroup.make(size, patience=20.0)

    def work(rank: int) -> Told:
        now = [0]
        model = Line(VALUES)
        chosen = optimizer(model)
        sync = LocalSGD(setting(strategy, lone(size, rank), groups[rank], lambda: epoch(now[0])))
        sync.attach(model, [chosen])
        told = Told(model, sync, groups[rank])
        for now[0] in range(steps if isinstance(steps, int) else steps[rank]):
            model.push(gradient(rank, now[0]))
            step(sync, chosen)
            told.history.append(model.flat())
        sync.finish()
        told.final = model.flat()
        return told

    return run_ranks(size, work)


def alone(size: int, steps: int, gradient: Grad = plain, make: Any = SGD, **options: float) -> list[Tensor]:
    """One process with the whole batch: what hardsync gives."""
    model = Line(VALUES)
    optimizer, history = make(model.parameters(), **options), []
    for number in range(steps):
        model.push(sum(gradient(rank, number) for rank in range(size)) / size)
        optimizer.step()
        history.append(model.flat())
    return history


def same(*tensors: Tensor | None) -> bool:
    first = tensors[0]
    assert first is not None
    return all(one is not None and torch.equal(first, one) for one in tensors)


# -- averaging ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4])
def test_with_every_one_and_sgd_it_is_hardsync(size: int) -> None:
    expected = alone(size, 6, lr=1.0)
    for told in train("local-sgd:every=1", size, 6):
        assert same(torch.stack(told.history), torch.stack(expected))


@given(size=st.integers(2, 4), every=st.integers(1, 5), steps=st.integers(1, 12))
@settings(deadline=None, max_examples=20)
def test_replicas_are_equal_after_a_round_and_after_the_flush(size: int, every: int, steps: int) -> None:
    told = train(f"local-sgd:every={every}", size, steps)
    for number in range(steps):
        equal = same(*(one.history[number] for one in told))
        assert equal == ((number + 1) % every == 0)
    assert same(*(one.final for one in told))


@pytest.mark.parametrize(("every", "steps", "rounds"), [(4, 12, 3), (4, 14, 4), (5, 4, 1), (3, 0, 0)])
def test_rounds_are_as_many_as_whole_turns_and_one_flush(
    every: int, steps: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    reduce = Fragment._reduce
    monkeypatch.setattr(Fragment, "_reduce", lambda self, *rest: (seen.append(self.name), reduce(self, *rest))[1])
    train(f"local-sgd:every={every}", 2, steps)
    assert len(seen) == 2 * rounds


def test_it_moves_two_parts_in_n_of_the_model_in_every_turn() -> None:
    for told in train("local-sgd:every=4", 4, 8):
        size = told.sync.spaces.popitem()[1].bytes
        assert size == 8 * 4
        assert told.group.seeing.bytes_sent == 2 * (2 * 3 * size // 4)  # two rounds
        assert told.sync.facts()["bytes_per_step"] == 0  # nothing is attached any more


def test_one_worker_is_plain_training() -> None:
    expected = torch.stack(alone(1, 9, lr=1.0, momentum=0.5))
    for strategy in ("local-sgd:every=4", "local-sgd:every=4,outer=nesterov,outer_lr=1,outer_momentum=0"):
        (told,) = train(strategy, 1, 9, optimizer=lambda model: SGD(model.parameters(), lr=1.0, momentum=0.5))
        assert same(torch.stack(told.history), expected)


# -- outer steps -------------------------------------------------------------------------------------------------------


def test_outer_nesterov_moves_first_by_a_third_more_than_the_mean_change() -> None:
    told = train("local-sgd:every=2,outer=nesterov", 2, 2, gradient=lambda rank, number: float(100 * (rank + 1)))
    start, change = torch.cat([torch.tensor(one) for one in VALUES]), 300.0
    for one in told:
        torch.testing.assert_close(one.history[-1], start - 1.33 * change)


def test_outer_nesterov_is_torchs_own() -> None:
    told = train("local-sgd:every=3,outer=nesterov,outer_lr=0.5,outer_momentum=0.75", 2, 12)
    anchor = torch.cat([torch.tensor(one) for one in VALUES])
    outer = SGD([anchor], lr=0.5, momentum=0.75, nesterov=True)
    for turn in range(4):
        gone = sum(plain(rank, number) for rank in range(2) for number in range(3 * turn, 3 * turn + 3)) / 2
        anchor.grad = torch.full_like(anchor, gone)
        outer.step()
        assert all(torch.equal(one.history[3 * turn + 2], anchor) for one in told)


@given(size=st.integers(1, 4), every=st.integers(1, 4), steps=st.integers(1, 10))
@settings(deadline=None, max_examples=15)
def test_outer_rate_one_without_momentum_is_averaging(size: int, every: int, steps: int) -> None:
    """To the last digit where the mean has none to lose: sizes that are powers of two."""
    size = 1 << (size // 2)
    averaged = train(f"local-sgd:every={every}", size, steps)
    diloco = train(f"local-sgd:every={every},outer=nesterov,outer_lr=1,outer_momentum=0", size, steps)
    slow = train(f"local-sgd:every={every},slowmo=1e-30,slowmo_lr=1", size, steps)
    for one, two, three in zip(averaged, diloco, slow, strict=True):
        assert same(torch.stack(one.history), torch.stack(two.history), torch.stack(three.history))


def test_slow_momentum_follows_its_formula_also_when_the_rate_changes() -> None:
    def decayed(model: Any) -> Optimizer:
        return SGD(model.parameters(), lr=1.0)

    groups = ThreadGroup.make(2)

    def work(rank: int) -> list[Tensor]:
        model = Line(VALUES)
        optimizer = decayed(model)
        sync = LocalSGD(setting("local-sgd:every=2,slowmo=0.5,slowmo_lr=0.5", lone(2, rank), groups[rank]))
        sync.attach(model, [optimizer])
        ends = []
        for number in range(8):
            optimizer.param_groups[0]["lr"] = 1.0 if number < 4 else 0.25
            model.push(plain(rank, number))
            step(sync, optimizer)
            ends.append(model.flat())
        sync.finish()
        return ends[1::2]

    x, u, expected = torch.cat([torch.tensor(one) for one in VALUES]), 0.0, []
    for turn in range(4):
        gamma = 1.0 if turn < 2 else 0.25
        change = gamma * sum(plain(rank, number) for rank in range(2) for number in (2 * turn, 2 * turn + 1)) / 2
        u = 0.5 * u + change / gamma
        x = x - 0.5 * gamma * u
        expected.append(x)
    for ends in run_ranks(2, work):
        assert same(torch.stack(ends), torch.stack(expected))


def test_lookahead_is_slowmo_of_one_worker() -> None:
    (told,) = train("local-sgd:every=4,slowmo=1e-30,slowmo_lr=0.5", 1, 4)
    start = torch.cat([torch.tensor(one) for one in VALUES])
    fast = alone(1, 4, lr=1.0)[-1]
    assert torch.equal(told.history[-1], start + 0.5 * (fast - start))


# -- streaming ---------------------------------------------------------------------------------------------------------


def streamed(
    size: int, steps: int, every: int, count: int, delay: int, mix: float, lr: float, m: float
) -> list[Tensor]:
    """Streaming DiLoCo with one number for each fragment, step by step as the paper has it; by rank at the end."""
    values = [[torch.tensor(list(one)) for one in VALUES] for _ in range(size)]
    anchors = [one.clone() for one in values[0]]
    momenta = [torch.zeros_like(one) for one in anchors]
    under_way: dict[int, tuple[int, Tensor]] = {}
    place_of = {place: place % count for place in range(len(VALUES))}  # parameters in turn: each is a layer of its own
    for number in range(1, steps + 1):
        for rank in range(size):
            for one in values[rank]:
                one -= plain(rank, number - 1)
        for place in range(len(VALUES)):
            fragment = place_of[place]
            if place in under_way and under_way[place][0] == number:
                _take(values, anchors, momenta, place, under_way.pop(place)[1], mix, lr, m)
            if number % every == (fragment + 1) * (every // count) % every:
                change = sum(anchors[place] - values[rank][place] for rank in range(size)) / size
                assert isinstance(change, Tensor) and place not in under_way
                under_way[place] = (number + delay, change)
                if not delay:
                    _take(values, anchors, momenta, place, under_way.pop(place)[1], mix, lr, m)
    return [torch.cat(one) for one in values]


def _take(
    values: list[list[Tensor]], anchors: list[Tensor], momenta: list[Tensor], place: int, change: Tensor,
    mix: float, lr: float, m: float,
) -> None:  # fmt: skip
    momenta[place] = m * momenta[place] + change
    anchors[place] = anchors[place] - lr * (change + m * momenta[place])
    for one in values:
        one[place] = mix * one[place] + (1 - mix) * anchors[place]


@pytest.mark.parametrize(
    ("every", "count", "delay", "mix"),
    [(4, 1, 0, 0.0), (4, 2, 0, 0.0), (4, 2, 1, 0.5), (8, 4, 1, 0.25), (6, 1, 5, 0.5), (4, 4, 0, 0.5)],
)
def test_streaming_does_what_the_paper_says(every: int, count: int, delay: int, mix: float) -> None:
    strategy = f"local-sgd:every={every},fragments={count},delay={delay},mix={mix},outer=nesterov"
    told = train(f"{strategy},outer_lr=0.5,outer_momentum=0.5", 2, 2 * every)
    expected = streamed(2, 2 * every, every, count, delay, mix, 0.5, 0.5)
    for one, value in zip(told, expected, strict=True):
        assert torch.equal(one.history[-1], value)


def test_one_fragment_without_delay_or_mix_is_diloco() -> None:
    plainly = train("local-sgd:every=4,outer=nesterov", 2, 9)
    explicit = train("local-sgd:every=4,outer=nesterov,fragments=1,delay=0,mix=0", 2, 9)
    for one, two in zip(plainly, explicit, strict=True):
        assert same(torch.stack(one.history), torch.stack(two.history)) and same(one.final, two.final)


@given(count=st.sampled_from([1, 2, 4]), turns=st.integers(1, 3), delay=st.integers(0, 1))
@settings(deadline=None, max_examples=12)
def test_each_fragment_meets_once_in_a_turn_and_has_one_exchange_under_way(count: int, turns: int, delay: int) -> None:
    every, steps = 4 * count, 4 * count * turns
    sends: list[tuple[int, str]] = []
    send = Fragment.send

    def watched(self: Fragment, background: bool) -> None:
        assert self._way is None, "two exchanges of one fragment under way"
        assert background == (delay > 0)
        sends.append((self.rounds.group.rank, self.name))
        send(self, background)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fragment, "send", watched)
        train(f"local-sgd:every={every},fragments={count},delay={delay}", 2, steps)
    for rank in range(2):
        names = [name for who, name in sends if who == rank]
        assert names == [f"0.0.{place}" for place in range(count)] * turns


def test_the_flush_takes_what_is_under_way_and_leaves_all_equal() -> None:
    told = train("local-sgd:every=4,fragments=2,delay=1,mix=0.5,outer=nesterov", 3, 7)
    assert same(*(one.final for one in told))
    assert not same(*(one.history[-1] for one in told))


def test_without_a_step_since_the_last_round_there_is_no_flush() -> None:
    """One more outer step would move by its momentum alone."""
    for one in train("local-sgd:every=3,outer=nesterov", 2, 6):
        assert same(one.history[-1], one.final)


@pytest.mark.parametrize(
    "options", ["every=5,fragments=2", "every=2,fragments=4", "every=4,fragments=2,delay=2", "every=4,mix=1.5"]
)
def test_schedules_that_cannot_be_are_refused(options: str) -> None:
    with pytest.raises(BadSpec):
        parse(f"local-sgd:{options}")


def test_more_fragments_than_parameters_are_refused() -> None:
    with pytest.raises(BadSpec, match="4 parameters"):
        train("local-sgd:every=8,fragments=8", 1, 1)


# -- post-local --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [SGD, Adam])
def test_before_its_epoch_post_local_is_one_process_with_any_optimizer(make: Any) -> None:
    options = {"lr": 0.5, "momentum": 0.5} if make is SGD else {"lr": 0.5}
    told = train(
        "local-sgd:every=4,from_epoch=2", 2, 12,
        optimizer=lambda model: make(model.parameters(), **options), epoch=lambda number: number // 3,
    )  # fmt: skip
    expected = alone(2, 6, make=make, **options)
    for one in told:
        assert same(torch.stack(one.history[:6]), torch.stack(expected))
    assert not same(*(one.history[6] for one in told))  # alone from here
    assert same(*(one.history[9] for one in told))  # a round, four steps later
    assert told[0].sync.needs_gradient


def test_workers_part_at_the_same_step_when_the_last_is_in_the_epoch() -> None:
    groups = ThreadGroup.make(2, patience=20.0)

    def work(rank: int) -> list[bool]:
        now, model = [0], Line(VALUES)
        optimizer = SGD(model.parameters(), lr=1.0)
        epoch = lambda: now[0] // (3 if rank else 5)  # noqa: E731
        sync = LocalSGD(setting("local-sgd:every=2,from_epoch=1", lone(2, rank), groups[rank], epoch))
        sync.attach(model, [optimizer])
        together = []
        for now[0] in range(8):
            model.push(plain(rank, now[0]))
            step(sync, optimizer)
            together.append(sync.spaces[id(optimizer)].together.on)
        sync.finish()
        return together

    assert run_ranks(2, work) == [[True] * 5 + [False] * 3] * 2


def test_a_parameter_nobody_used_keeps_no_gradient_and_one_that_some_used_gets_one() -> None:
    groups = ThreadGroup.make(2)

    def work(rank: int) -> list[Tensor | None]:
        model = Line(VALUES)
        optimizer = SGD(model.parameters(), lr=1.0)
        sync = LocalSGD(setting("local-sgd:from_epoch=1", lone(2, rank), groups[rank]))
        sync.attach(model, [optimizer])
        if rank:
            model.parts[0].grad = torch.full((3,), 4.0)
        sync.before_step(optimizer)
        return [one.grad for one in model.parts]

    for first, *others in run_ranks(2, work):
        assert first is not None and torch.equal(first, torch.full((3,), 2.0))
        assert others == [None, None, None]


# -- buffers, momentum, kinds of numbers -------------------------------------------------------------------------------


class Normed(nn.Module):
    """Buffers of every kind."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([4.0]))
        self.register_buffer("mean", torch.tensor([4.0 * rank]))
        self.register_buffer("count", torch.tensor(10 * rank))
        self.register_buffer("on", torch.tensor(rank == 1))


@pytest.mark.parametrize("strategy", ["local-sgd:every=2", "local-sgd:every=2,delay=1"])
def test_numbers_among_the_buffers_are_averaged_and_the_rest_is_the_lowest_members(strategy: str) -> None:
    groups = ThreadGroup.make(2)

    def work(rank: int) -> tuple[float, int, bool]:
        model = Normed(rank)
        optimizer = SGD(model.parameters(), lr=1.0)
        sync = LocalSGD(setting(strategy, lone(2, rank), groups[rank]))
        sync.attach(model, [optimizer])
        assert model.mean == 0.0 and model.count == 0 and not model.on  # all begin with those of the lowest
        for number in range(3):
            model.weight.grad = torch.ones(1)
            if number < 2:
                model.mean += 8.0 * rank
                model.count += 1 + rank
                model.on.fill_(rank == 0)
            step(sync, optimizer)
        told = (float(model.mean), int(model.count), bool(model.on))
        sync.finish()
        return told

    assert run_ranks(2, work) == [(8.0, 2, True)] * 2


def test_batch_norm_is_the_same_everywhere_after_a_round() -> None:
    groups = ThreadGroup.make(2)

    def work(rank: int) -> dict[str, Tensor]:
        torch.manual_seed(rank)
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        optimizer = SGD(model.parameters(), lr=0.1)
        sync = LocalSGD(setting("local-sgd:every=3", lone(2, rank), groups[rank]))
        sync.attach(model, [optimizer])
        for number in range(3):
            inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(10 * rank + number))
            optimizer.zero_grad()
            model(inputs).square().sum().backward()
            step(sync, optimizer)
        sync.finish()
        return dict(model.state_dict())

    one, two = run_ranks(2, work)
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("kept", [True, False])
def test_the_inner_momentum_is_kept_or_zeroed_at_a_round(kept: bool) -> None:
    groups = ThreadGroup.make(2)

    def work(rank: int) -> bool:
        model = Line(VALUES)
        optimizer = SGD(model.parameters(), lr=1.0, momentum=0.5)
        told = f"local-sgd:every=2,momentum={'keep' if kept else 'zero'}"
        sync = LocalSGD(setting(told, lone(2, rank), groups[rank]))
        sync.attach(model, [optimizer])
        for number in range(2):
            model.push(plain(rank, number))
            step(sync, optimizer)
        return any(bool(optimizer.state[one]["momentum_buffer"].any()) for one in model.parts)

    assert run_ranks(2, work) == [kept] * 2


@pytest.mark.parametrize("outer", ["average", "nesterov"])
def test_parameters_of_several_kinds_tied_and_frozen(outer: str) -> None:
    groups = ThreadGroup.make(2)

    def work(rank: int) -> dict[str, Tensor]:
        model = nn.Module()
        model.narrow = nn.Parameter(torch.tensor([2.0, 4.0], dtype=torch.bfloat16))
        model.wide = nn.Parameter(torch.tensor([8.0], dtype=torch.float64))
        model.single = nn.Parameter(torch.tensor([[16.0, 32.0]]))
        model.tied = model.single
        model.frozen = nn.Parameter(torch.tensor([1.0 + rank]), requires_grad=False)
        optimizer = SGD(list(model.parameters()), lr=1.0)
        sync = LocalSGD(setting(f"local-sgd:every=2,outer={outer}", lone(2, rank), groups[rank]))
        sync.attach(model, [optimizer])
        for _ in range(2):
            for one in (model.narrow, model.wide, model.single):
                one.grad = torch.full_like(one, float(rank))
            step(sync, optimizer)
        sync.finish()
        return {name: one.detach().clone() for name, one in model.named_parameters()}

    one, two = run_ranks(2, work)
    assert all(torch.equal(one[name], two[name]) for name in one)
    moved = 1.0 if outer == "average" else 1.33
    assert one["frozen"] == 1.0 and one["single"][0, 0] == pytest.approx(16.0 - moved)
    assert one["wide"] == pytest.approx(8.0 - moved)


# -- who comes and goes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["local-sgd:every=4", "local-sgd:every=4,outer=nesterov,fragments=2,delay=1"])
@pytest.mark.parametrize("steps", [(3, 9, 12), (12, 5, 1), (0, 8, 8), (10, 2, 11)])
def test_who_ends_early_flushes_and_leaves_and_the_others_go_on(strategy: str, steps: tuple[int, ...]) -> None:
    told = train(strategy, 3, list(steps))
    assert [len(one.history) for one in told] == list(steps)


def test_what_an_early_worker_did_is_in_the_next_round_of_the_others() -> None:
    told = train("local-sgd:every=4", 2, [1, 8])
    start = torch.cat([torch.tensor(one) for one in VALUES])
    short, long = start - plain(0, 0), start - sum(plain(1, number) for number in range(4))
    assert torch.equal(told[0].final, (short + long) / 2)  # type: ignore[arg-type]
    assert torch.equal(told[1].history[3], (short + long) / 2)
    assert torch.equal(told[1].history[7], (short + long) / 2 - sum(plain(1, number) for number in range(4, 8)))


def test_a_round_that_fails_leaves_a_worker_on_its_own_parameters() -> None:
    groups = ThreadGroup.make(2)

    def work(rank: int) -> tuple[Tensor, Tensor] | None:
        model = Line(VALUES)
        optimizer = SGD(model.parameters(), lr=1.0)
        sync = LocalSGD(setting("local-sgd:every=2,outer=nesterov", lone(2, rank), groups[rank]))
        sync.attach(model, [optimizer])
        for number in range(3):
            model.push(plain(rank, number))
            step(sync, optimizer)
        if rank:
            groups[rank].die()
            return None
        model.push(1.0)
        before = model.flat() - 1.0
        with pytest.raises(PeerLost, match="worker-1"):
            step(sync, optimizer)
        return before, model.flat()

    mine, _ = run_ranks(2, work)
    assert mine is not None and same(*mine)


@pytest.mark.parametrize("name", ["fp16", "bf16", "topk", "onebit", "powersgd"])
def test_squeezed_rounds_leave_all_replicas_equal(name: str) -> None:
    told = train(f"local-sgd:every=2,compress={name},outer=nesterov,fragments=2,delay=0", 3, 6)
    for number in (3, 5):
        one, *others = (told_.history[number] for told_ in told)
        assert all(torch.equal(one[3:5], other[3:5]) for other in others)  # of the last fragment of the turn
    assert same(*(one.final for one in told))


def test_two_optimizers_and_two_models_meet_each_in_its_own_rounds() -> None:
    groups = ThreadGroup.make(2, patience=20.0)

    def work(rank: int) -> list[Tensor]:
        first, second = Line(((8.0,), (16.0,))), Line(((32.0, 64.0),))
        one, two = SGD([first.parts[0]], lr=1.0), SGD([first.parts[1]], lr=1.0)
        three = SGD(second.parameters(), lr=1.0)
        syncs = [LocalSGD(setting("local-sgd:every=2", lone(2, rank), groups[rank], unit=unit)) for unit in (0, 1)]
        syncs[0].attach(first, [one, two])
        syncs[1].attach(second, [three])
        for number in range(7 if rank else 4):
            for model in (first, second):
                model.push(plain(rank, number))
            step(syncs[0], one)
            if number % 2:
                step(syncs[0], two)
            step(syncs[1], three)
        for sync in syncs:
            sync.finish()
            sync.finish()  # harmless twice
        return [first.flat(), second.flat()]

    (a, b), (c, d) = run_ranks(2, work)
    assert a.shape == c.shape and b.shape == d.shape
    assert all(one.isfinite().all() for one in (a, b, c, d))


def test_workers_with_different_models_are_told_the_first_difference() -> None:
    groups = ThreadGroup.make(2)

    def work(rank: int) -> str:
        model = Line(VALUES if rank else VALUES[:2])
        sync = LocalSGD(setting("local-sgd", lone(2, rank), groups[rank]))
        with pytest.raises(Disagreement) as caught:
            sync.attach(model, [SGD(model.parameters(), lr=1.0)])
        return caught.value.message

    for message in run_ranks(2, work):
        assert "worker-0 has nothing more where worker-1 has parameter parts.2" in message


def test_workers_that_step_in_different_orders_are_told_so() -> None:
    groups = ThreadGroup.make(2)

    def work(rank: int) -> str:
        model = Line(((8.0,), (16.0,)))
        optimizers = [SGD([one], lr=1.0) for one in model.parts]
        sync = LocalSGD(setting("local-sgd:every=1", lone(2, rank), groups[rank]))
        sync.attach(model, optimizers)
        model.push(1.0)
        with pytest.raises(Disagreement) as caught:
            step(sync, optimizers[rank])
        return caught.value.message

    for message in run_ranks(2, work):
        assert "worker-0 is in round '0.0.0', worker-1 in '0.1.0'" in message


# -- checkpoints -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "strategy",
    [
        "local-sgd:every=4",
        "local-sgd:every=4,outer=nesterov",
        "local-sgd:every=4,slowmo=0.5",
        "local-sgd:every=4,fragments=2,delay=1,mix=0.5,outer=nesterov",
        "local-sgd:every=2,compress=topk",
        "local-sgd:every=2,compress=powersgd",
        "local-sgd:every=2,from_epoch=1",
    ],
)
def test_a_run_that_is_resumed_goes_on_to_the_same_bits(strategy: str) -> None:
    def run(stops: int | None) -> list[Tensor]:
        kept: dict[int, Any] = {}
        for begin, end in [(0, 10)] if stops is None else [(0, stops), (stops, 10)]:
            groups = ThreadGroup.make(2, patience=20.0)

            def work(rank: int, begin: int = begin, end: int = end, groups: Any = groups) -> Tensor:
                now, model = [0], Line(VALUES)
                optimizer = SGD(model.parameters(), lr=0.5, momentum=0.5)
                epoch = lambda: now[0] // 5  # noqa: E731
                sync = LocalSGD(setting(strategy, lone(2, rank), groups[rank], epoch))
                sync.attach(model, [optimizer])
                if rank in kept:
                    values, states, own = kept[rank]
                    model.load_state_dict(values)
                    optimizer.load_state_dict(states)
                    sync.load(own)
                for now[0] in range(begin, end):
                    model.push(plain(rank, now[0]))
                    step(sync, optimizer)
                kept[rank] = copy.deepcopy((model.state_dict(), optimizer.state_dict(), sync.state()))
                if end == 10:
                    sync.finish()
                return model.flat()

            ends = run_ranks(2, work)
        return ends

    expected = run(None)
    for stops in (3, 5, 6):
        assert all(same(one, other) for one, other in zip(run(stops), expected, strict=True))


def test_a_checkpoint_of_another_model_is_refused() -> None:
    groups = ThreadGroup.make(1)
    syncs = []
    for values in (VALUES, VALUES[:2]):
        model = Line(values)
        sync = LocalSGD(setting("local-sgd:outer=nesterov", lone(1, 0), ThreadGroup.make(1)[0]))
        sync.attach(model, [SGD(model.parameters(), lr=1.0)])
        syncs.append(sync)
    with pytest.raises(BadCheckpoint, match="another model"):
        syncs[1].load(syncs[0].state())
    assert groups


def test_errors_of_compression_are_not_taken_from_another_worker() -> None:
    model, group = Line(VALUES), ThreadGroup.make(1)[0]
    optimizer = SGD(model.parameters(), lr=1.0)
    sync = LocalSGD(setting("local-sgd:every=1,compress=topk", lone(1, 0), group))
    sync.attach(model, [optimizer])
    model.push(3.0)
    step(sync, optimizer)
    state = dict(sync.state())
    reducer = sync.spaces[id(optimizer)].reducer
    assert reducer is not None and reducer.state()
    reducer.load({})
    sync.load({**state, "rank": 5})
    assert not reducer.state()


def test_it_says_what_it_does() -> None:
    told = train("local-sgd:every=4,outer=nesterov,fragments=2,delay=1,mix=0.5,from_epoch=0", 2, 0)[0]
    facts = told.sync.facts()
    assert facts["rounds"] == (
        "every 4 steps, outer Nesterov, rate 0.7, momentum 0.9, in 2 fragments, taken 1 steps later, mix 0.5"
    )
    assert "averaged" in facts["buffers"] and facts["bytes_per_step"] == round(2 * 1 / 2 * 32 / 4)
