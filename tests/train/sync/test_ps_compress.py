"""Squeezed pushes: the same numbers near and far, fewer bytes over the network, and nothing lost for good."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.train.sync.central import Worker, site, whole
from tests.train.sync.test_ps_async import RATE, Line

WIDTH = 20_000


def train(worker: Worker, steps: int = 4) -> tuple[Tensor, Worker]:
    model = Line(WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    worker.wrap(model, optimizer)
    worker.seeing.bytes_sent = 0
    for step in range(steps):
        model.w.grad = whole(WIDTH, seed=step) + 0.001
        optimizer.step()
    return model.w.detach().clone(), worker


def sent(steps: int = 4) -> Tensor:
    return sum((whole(WIDTH, seed=step) + 0.001 for step in range(steps)), torch.zeros(WIDTH))


@pytest.mark.parametrize("how", ["fp16", "bf16", "topk,ratio=0.1", "onebit"])
def test_near_and_far_get_the_same_numbers_and_the_error_stays_here(how: str, tmp_path: Path) -> None:
    found = {}
    for far in (False, True):
        with site(tmp_path / f"{far}", f"ps-async:compress={how}", 1, servers=2, far=far) as here:
            found[far], worker = train(here.worker(0))
            residual = flat_residual(worker)
            sent_bytes = worker.seeing.bytes_sent
            worker.finish()
        assert torch.allclose(found[far] / -RATE + residual, sent(), atol=1e-3)
        if far:
            assert sent_bytes < 4 * WIDTH * 4 * 0.55
    assert torch.equal(found[False], found[True])


def flat_residual(worker: Worker) -> Tensor:
    """What was squeezed out, in the order of the parameter."""
    (way,) = worker.sync._ways.values()
    portion, out = way.portion, torch.zeros(WIDTH)
    errors = portion.squeezer.state()
    for part in portion.layout.parts:
        for piece in part.pieces:
            at = piece.offset - part.offset
            error = errors[f"{portion.space}/{part.server}"]
            out[piece.begin : piece.begin + piece.count] = error[at : at + piece.count]
    return out


def test_keeping_everything_is_no_compression(tmp_path: Path) -> None:
    with site(tmp_path / "all", "ps-async:compress=topk,ratio=1", 1) as here:
        squeezed, worker = train(here.worker(0))
        worker.finish()
    with site(tmp_path / "none", "ps-async", 1) as here:
        plain, worker = train(here.worker(0))
        worker.finish()
    assert torch.equal(squeezed, plain)


def test_what_was_squeezed_out_belongs_to_the_checkpoint(tmp_path: Path) -> None:
    strategy = "ps-async:compress=topk,ratio=0.1"
    with site(tmp_path / "one", strategy, 1) as here:
        whole_way, worker = train(here.worker(0), 4)
        worker.finish()
    with site(tmp_path / "two", strategy, 1) as here:
        _, worker = train(here.worker(0), 2)
        state = worker.sync.state()
        worker.finish()
    with site(tmp_path / "three", strategy, 1) as here:
        model = Line(WIDTH)
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        worker = here.worker(0)
        worker.wrap(model, optimizer)
        worker.sync.load(state)
        for step in (2, 3):
            model.w.grad = whole(WIDTH, seed=step) + 0.001
            optimizer.step()
        worker.finish()
    assert torch.equal(model.w.detach(), whole_way)


def test_what_another_worker_squeezed_out_is_not_taken(tmp_path: Path) -> None:
    strategy = "ps-async:compress=topk,ratio=0.1"
    with site(tmp_path / "one", strategy, 1) as here:
        _, worker = train(here.worker(0), 2)
        state = worker.sync.state()
        assert flat_residual(worker).any()
        worker.finish()
    with site(tmp_path / "two", strategy, 2) as here:
        workers = [here.worker(rank) for rank in range(2)]
        for one in workers:
            model = Line(WIDTH)
            one.wrap(model, torch.optim.SGD(model.parameters(), lr=RATE))
            one.sync.load(state)
        assert flat_residual(workers[0]).any()
        assert not any(way.portion.squeezer.state() for way in workers[1].sync._ways.values())
        for one in workers:
            one.finish()
