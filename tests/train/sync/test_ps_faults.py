"""Servers that die and come back, workers that die or end early, models that differ: nobody hangs, nothing counts
twice."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.train.errors import Disagreement, PeerLost, TrainError
from shoal.train.wire import frames
from tests.train.sync.central import Site, Worker, batch, linear, loss_of, same, site, together, weights
from tests.train.sync.test_ps_async import RATE, Line, total, train
from tests.train.sync.test_ps_sync import OPTIMIZERS, alone


class Flaky:
    """Ends a server and starts another in its place, whenever it is told to."""

    def __init__(self, here: Site) -> None:
        self._here = here

    def __call__(self, index: int = 0) -> None:
        self._here.stop(index)
        self._here.start(index)


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_a_server_that_comes_back_changes_nothing(name: str, far: bool, tmp_path: Path) -> None:
    """Both servers die in turn, between and within steps; the result is that of one process, bit for bit."""
    with site(tmp_path, "ps-sync", 2, servers=2, far=far) as here:
        restart = Flaky(here)
        turn = threading.Barrier(2)

        def act(rank: int) -> list[torch.Tensor]:
            worker, model = here.worker(rank), linear(20, 30)
            optimizer = OPTIMIZERS[name](model)
            worker.wrap(model, optimizer)
            for step in range(3):
                optimizer.zero_grad()
                loss_of(model, *batch(rank, step, inputs=20, outputs=30)).backward()
                turn.wait(30)
                if rank == 0:
                    threading.Timer(0.002 * step, restart, [step % 2]).start()
                optimizer.step()
            worker.finish()
            return weights(model)

        results = together(2, act)
    with site(tmp_path / "calm", "ps-sync", 2, servers=2) as here:

        def calm(rank: int) -> list[torch.Tensor]:
            worker, model = here.worker(rank), linear(20, 30)
            optimizer = OPTIMIZERS[name](model)
            worker.wrap(model, optimizer)
            for step in range(3):
                optimizer.zero_grad()
                loss_of(model, *batch(rank, step, inputs=20, outputs=30)).backward()
                optimizer.step()
            worker.finish()
            return weights(model)

        expected = together(2, calm)
    assert same(results[0], results[1]) and same(results[0], expected[0])


def test_every_push_counts_once_however_often_the_server_dies(tmp_path: Path) -> None:
    steps = 12
    with site(tmp_path, "ps-async", 2) as here:
        restart, over = Flaky(here), threading.Event()
        after = threading.Barrier(2)

        def trouble() -> None:
            while not over.wait(0.01):
                restart()

        thread = threading.Thread(target=trouble, daemon=True)
        thread.start()

        def act(rank: int) -> torch.Tensor:
            worker = here.worker(rank)
            model = train(worker, steps)
            after.wait(30)
            for way in worker.sync._ways.values():
                way.portion.pull()
            after.wait(30)
            over.set()
            worker.finish()
            return model.w.detach()

        results = together(2, act)
        thread.join(30)
    for one in results:
        assert torch.equal(one, -RATE * total(2, steps))


def test_a_server_that_stays_away_is_named(tmp_path: Path) -> None:
    with site(tmp_path, "ps-async", 1) as here:
        world = here.world(0)
        worker = Worker(type(world)(**{**vars(world), "variables": {"SHOAL_TRAIN_PATIENCE": "0.3"}}))
        model = Line()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        worker.wrap(model, optimizer)
        here.stop(0)
        model.w.grad = torch.ones(300)
        with pytest.raises(PeerLost, match=r"server-0 did not come within 0.3 s.*SHOAL_TRAIN_PATIENCE") as lost:
            optimizer.step()
        assert lost.value.who == ["server-0"]
        with pytest.raises(PeerLost):
            worker.finish()


def test_a_worker_that_dies_is_not_waited_for(tmp_path: Path) -> None:
    with site(tmp_path, "ps-sync", 2) as here:

        def act(rank: int) -> list[torch.Tensor] | None:
            worker, model = here.worker(rank), linear()
            optimizer = OPTIMIZERS["sgd"](model)
            worker.wrap(model, optimizer)
            for step in range(4):
                if rank == 1 and step == 2:
                    for way in worker.sync._ways.values():
                        way.portion.servers.close()  # as its death would
                    return None
                optimizer.zero_grad()
                loss_of(model, *batch(rank, step)).backward()
                optimizer.step()
            worker.finish()
            return weights(model)

        survivor, _ = together(2, act)
    model = linear()
    optimizer = OPTIMIZERS["sgd"](model)
    for step in range(4):
        optimizer.zero_grad()
        ranks = [0, 1] if step < 2 else [0]
        for rank in ranks:
            (loss_of(model, *batch(rank, step)) / len(ranks)).backward()
        optimizer.step()
    assert survivor is not None and same(survivor, weights(model))


def test_workers_may_end_at_different_times(tmp_path: Path) -> None:
    with site(tmp_path, "ps-sync", 3) as here:

        def act(rank: int) -> int:
            worker, model = here.worker(rank), linear()
            optimizer = OPTIMIZERS["adam"](model)
            worker.wrap(model, optimizer)
            for step in range(1 + 2 * rank):
                optimizer.zero_grad()
                loss_of(model, *batch(rank, step)).backward()
                optimizer.step()
            worker.finish()
            return here.status()["0.0"]["version"]

        assert max(together(3, act)) == 5


def test_different_models_are_refused_with_the_first_difference(tmp_path: Path) -> None:
    with site(tmp_path, "ps-async", 2) as here:
        first, second = here.worker(0), here.worker(1)
        model, other = linear(5, 3), linear(5, 4)
        first.wrap(model, torch.optim.SGD(model.parameters(), lr=1.0))
        with pytest.raises(Disagreement, match=r"weight \[4, 5\] float32 .*weight \[3, 5\]"):
            second.wrap(other, torch.optim.SGD(other.parameters(), lr=1.0))
        assert not list((tmp_path / "node-0").glob("grad-0.0-w1")), "its slot is left behind"
        first.finish()


def test_different_optimizers_are_refused(tmp_path: Path) -> None:
    with site(tmp_path, "ps-async", 2) as here:
        first, second = here.worker(0), here.worker(1)
        model, other = linear(), linear()
        first.wrap(model, torch.optim.SGD(model.parameters(), lr=1.0))
        with pytest.raises(Disagreement, match="optimizer is 'Adam'"):
            second.wrap(other, torch.optim.Adam(other.parameters()))
        first.finish()


def test_a_state_that_cannot_be_sent_is_not_asked_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with site(tmp_path, "ps-async", 1) as here:
        worker, model = here.worker(0), linear()
        worker.wrap(model, torch.optim.SGD(model.parameters(), lr=1.0))
        with monkeypatch.context() as limited:
            limited.setattr(frames, "PAYLOAD_LIMIT", 16)
            with pytest.raises(TrainError, match="lost each other twice over dump of space 0.0"):
                worker.sync.state()
        assert worker.sync.state()["spaces"]
        worker.finish()


def test_a_server_that_ends_is_said_to_end_once(tmp_path: Path, caplog: pytest.LogCaptureFixture, heard: None) -> None:
    with site(tmp_path, "ps-async", 1) as here:
        worker, model = here.worker(0), linear()
        worker.wrap(model, torch.optim.SGD(model.parameters(), lr=1.0))
        (way,), (_, service) = worker.sync._ways.values(), here.running[0]
        space, refusals = service.spaces()["0.0"].space, iter(range(10))

        def refuses(*_: Any) -> None:
            if next(refusals, None) is not None:
                raise PeerLost("server-0 ends")
            space.ask = ask  # type: ignore[method-assign]

        ask, space.ask = space.ask, refuses  # type: ignore[assignment, method-assign]
        way.portion.servers[0].ask("pull", {"clock": 0})
        assert next(refusals, None) is None and caplog.text.count("server-0 ends") == 1
        worker.finish()


def test_finish_twice_is_harmless(tmp_path: Path) -> None:
    with site(tmp_path, "ps-async", 1) as here:
        worker = here.worker(0)
        train(worker, 1)
        worker.sync.finish()
        worker.sync.finish()


def test_too_little_shared_memory_falls_back_to_tcp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, heard: None
) -> None:
    from shoal.train.errors import NoRoom
    from shoal.train.ps import slots

    class Full:
        @staticmethod
        def create(path: Path, size: int, touch: bool = False) -> None:
            raise NoRoom("no room for 1.0 MB of shared memory")

    with site(tmp_path, "ps-sync", 2) as here:
        monkeypatch.setattr(slots, "Segment", Full)  # the workers'; the server has its own
        made = [here.worker(rank) for rank in range(2)]

        def act(rank: int) -> list[torch.Tensor]:
            model = linear()
            optimizer = OPTIMIZERS["sgd"](model)
            made[rank].wrap(model, optimizer)
            for step in range(2):
                optimizer.zero_grad()
                loss_of(model, *batch(rank, step)).backward()
                optimizer.step()
            facts = made[rank].sync.facts()
            made[rank].finish()
            assert facts["transport"] == "TCP"
            return weights(model)

        results = together(2, act)
    assert all(same(one, alone(2, 2, OPTIMIZERS["sgd"])) for one in results)
    assert "over TCP: no room" in caplog.text
