"""The worker's tools: which gradients may leave in backward, where they lie in the slot, where parameters land."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from shoal.train.ps import early
from shoal.train.ps.early import Early
from shoal.train.ps.lane import Lane
from shoal.train.ps.layout import Layout, ParamInfo
from shoal.train.ps.parcel import Parcels
from shoal.train.ps.pull import Landing
from shoal.train.ps.slots import Slot
from tests.train.sync.central import Worker, site, together
from tests.train.sync.test_ps_async import RATE, Line


class Watched:
    """A parameter with an Early, and what left."""

    def __init__(self) -> None:
        self.param = nn.Parameter(torch.zeros(early.WORTH))
        self.left: list[Tensor] = []
        self.early = Early([self.param], lambda _, grad: self.left.append(grad.clone()), self.holds)

    def holds(self, index: int, grad: Tensor) -> bool:
        return bool(self.left) and torch.equal(self.left[-1], grad)

    def backward(self) -> None:
        (self.param * torch.ones(early.WORTH)).sum().backward()

    def step(self, backwards: int = 1) -> bool:
        """Whether the gradient had left by the step."""
        for _ in range(backwards):
            self.backward()
        return self.ended()

    def ended(self) -> bool:
        left = self.early.stale() == []
        self.param.grad = None
        return left


def test_a_gradient_leaves_in_backward_from_the_second_step_on() -> None:
    one = Watched()
    assert [one.step() for _ in range(3)] == [False, True, True]


def test_with_accumulation_it_leaves_at_the_last_backward() -> None:
    one = Watched()
    assert [one.step(3) for _ in range(3)] == [False, True, True]
    assert len(one.left) == 2 and all(torch.equal(left, torch.full_like(left, 3.0)) for left in one.left)


def test_one_backward_more_than_before_is_noticed() -> None:
    one = Watched()
    assert [one.step(), one.step(), one.step(2), one.step(2)] == [False, True, False, True]
    assert one.early.again == 1


def test_who_clips_every_time_sends_nothing_ahead() -> None:
    one = Watched()
    for _ in range(3):
        one.backward()
        nn.utils.clip_grad_norm_([one.param], 0.5)
        assert one.ended() is False
    assert one.left == []


def test_what_is_changed_behind_autograds_back_is_noticed() -> None:
    one = Watched()
    one.step()
    one.backward()
    assert one.param.grad is not None
    one.param.grad.data.mul_(2.0)
    assert one.ended() is False
    assert one.early.again == 1


def test_a_gradient_that_was_replaced_is_noticed() -> None:
    one = Watched()
    one.step()
    one.backward()
    one.param.grad = torch.ones(early.WORTH)
    assert one.ended() is False


def test_a_closed_watch_watches_no_more() -> None:
    one = Watched()
    one.step()
    one.early.close()
    one.backward()
    assert one.left == []


sizes = st.lists(st.lists(st.integers(1, 40), min_size=0, max_size=2), min_size=1, max_size=6)


@settings(deadline=None, max_examples=40)
@given(sizes, st.integers(1, 4), st.integers(0, 2), st.data())
def test_what_is_laid_down_lands_again(shapes: list[list[int]], servers: int, groups: int, data: st.DataObject) -> None:
    """Whatever the shapes, groups and servers: slot and landing agree on where everything lies."""
    group = [data.draw(st.integers(0, groups)) for _ in shapes]
    params = [torch.randn(shape) for shape in shapes]
    infos = [ParamInfo(f"p{at}", one.numel(), "float32", group[at], tuple(one.shape)) for at, one in enumerate(params)]
    layout = Layout.of(infos, servers, 256)
    slot = Slot(layout, None, Lane())
    slot.put(enumerate(params))
    assert all(slot.holds(index, one) and torch.equal(slot.of(index), one) for index, one in enumerate(params))
    targets = [torch.zeros(shape) for shape in shapes]
    landing = Landing(layout, targets)
    for part in layout.parts:
        if part.count:
            landing.scatter(part, slot.part(part))
            assert torch.equal(landing.gather(part), slot.part(part))
    landing.finish()
    assert all(torch.equal(mine, other) for mine, other in zip(params, targets, strict=True))


def test_a_slot_knows_what_is_zero(tmp_path: Path) -> None:
    slot = Slot(Layout.of([ParamInfo("a", 3, shape=(3,)), ParamInfo("b", 2, shape=(2,))]), tmp_path / "slot", Lane())
    slot.put([(0, torch.ones(3)), (1, torch.ones(2))])
    slot.put([(0, None)])
    slot.add([(1, torch.ones(2))], -3.0)
    assert slot.of(0).tolist() == [0.0, 0.0, 0.0] and slot.of(1).tolist() == [-2.0, -2.0]
    slot.clear_all()
    assert not slot.flat.any()
    slot.close()
    assert not (tmp_path / "slot").exists()


def test_a_sparse_gradient_is_laid_down_dense() -> None:
    slot = Slot(Layout.of([ParamInfo("a", 6, shape=(3, 2))]), None, Lane())
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.ones(2, 2), (3, 2), check_invariants=True)
    slot.put([(0, sparse)])
    assert slot.of(0).tolist() == [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]


def test_parameters_that_moved_are_found_again() -> None:
    param = nn.Parameter(torch.zeros(4))
    layout = Layout.of([ParamInfo("a", 4, shape=(4,))])
    landing = Landing(layout, [param])
    landing.scatter(layout.part(0), torch.ones(layout.count))
    param.data = torch.zeros(4)
    before = param._version
    landing.scatter(layout.part(0), torch.ones(layout.count) * 2)
    assert param.tolist() == [2.0, 2.0, 2.0, 2.0]
    assert param._version > before, "a graph that needs the old values must notice"


def test_what_did_not_go_ahead_travels_in_few_ranges() -> None:
    """Nine parameters, the large ones went ahead: the small ones between them are sent, near ones together."""
    infos = [ParamInfo(f"p{at}", 100_000 if at % 2 else 16, shape=()) for at in range(9)]
    layout = Layout.of(infos)
    parcels = Parcels.__new__(Parcels)
    parcels._ahead = frozenset({1, 3, 5, 7})
    ranges = parcels._rest(layout.part(0))
    assert len(ranges) == 5 and all(count == 16 for _, count in ranges)
    parcels._ahead = frozenset()
    assert parcels._rest(layout.part(0)) == [(0, sum(one.numel for one in infos))]


def test_gradients_travel_ahead_to_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "WORTH", 1)
    with site(tmp_path, "ps-async", 1, servers=2, far=True) as here:
        worker, model = here.worker(0), Line()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        worker.wrap(model, optimizer)
        (way,) = worker.sync._ways.values()
        for step in range(4):
            optimizer.zero_grad()
            model(torch.ones(300)).backward()
            if step == 2:
                assert model.w.grad is not None
                model.w.grad.mul_(2)
            optimizer.step()
        watched = way.portion.parcels.early
        assert watched is not None and (watched.left, watched.again) == (2, 1)
        worker.finish()
    assert torch.equal(model.w.detach(), torch.full((300,), -RATE * 5))


def test_a_long_wait_names_who_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.train.ps import counterpart

    monkeypatch.setattr(counterpart, "NOTICE", 0.05)
    seen: list[str] = []

    def act(rank: int) -> None:
        model = Line()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        workers[rank].wrap(model, optimizer)
        model.w.grad = torch.ones(300)
        if rank == 1:
            while "worker-1" not in workers[0].seeing.waiting:
                pass
            seen.append(workers[0].seeing.waiting)
        optimizer.step()
        workers[rank].finish()

    with site(tmp_path, "ps-sync", 2) as here:
        workers: list[Worker] = [here.worker(rank) for rank in range(2)]
        together(2, act)
    assert seen == ["the answer of server-0 to push 1: worker-1"]


def test_large_parts_travel_over_several_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.train.ps import counterpart

    monkeypatch.setattr(counterpart, "WORTH", 1 << 20)
    width = 1_000_000
    with site(tmp_path, "ps-async", 1, far=True) as here:
        worker, model = here.worker(0), Line(width)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        worker.wrap(model, optimizer)
        (way,) = worker.sync._ways.values()
        for _ in range(2):
            model.w.grad = torch.arange(width).float()
            optimizer.step()
        assert len(way.portion.servers[0]._link._bulk) == 3
        worker.finish()
    assert torch.equal(model.w.detach(), -RATE * 2 * torch.arange(width).float())
