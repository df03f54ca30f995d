"""Saving and going on: what comes back, what is kept, what is refused."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from shoal.train.checkpoint import Averages, beside, weights
from shoal.train.checkpoint.chain import Chain
from shoal.train.checkpoint.disk import Disk, Facts
from shoal.train.errors import BadCheckpoint, Disagreement, TrainError
from tests.train.checkpoint.keepers import Worker, in_step, same


def saved(folder: Path, epochs: int = 1, **options: Any) -> Worker:
    worker = Worker(folder, **options)
    for epoch in range(epochs):
        worker.tally.epoch = epoch
        worker.train(epoch + 1)
        worker.keeper.save(epoch)
    worker.keeper.finish()
    return worker


def names(folder: Path) -> list[str]:
    return [one.name for one in Chain(folder / "checkpoints").whole()]


# -- going on ----------------------------------------------------------------------------------------------------------


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    before = saved(tmp_path, epochs=3)
    after = Worker(tmp_path)
    resumed = after.keeper.resume()
    assert resumed and (resumed.epoch, resumed.step, resumed.tag) == (3, 3, 2)
    assert same(after.everything(), before.everything())


def test_what_is_added_after_resuming_is_loaded_at_once(tmp_path: Path) -> None:
    class Scheduler:
        value = 0

        def state_dict(self) -> dict[str, int]:
            return {"value": self.value}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.value = state["value"]

    before, own = Worker(tmp_path), Scheduler()
    own.value = 5
    before.keeper.add("own.scheduler", own.state_dict, own.load_state_dict)
    before.keeper.save(0)
    before.keeper.finish()
    after, again = Worker(tmp_path), Scheduler()
    after.keeper.resume()
    after.keeper.add("own.scheduler", again.state_dict, again.load_state_dict)
    assert again.value == 5


def test_the_first_run_has_nothing_to_go_on_from(tmp_path: Path) -> None:
    assert Worker(tmp_path).keeper.resume() is None


def test_in_the_middle_of_an_epoch_it_goes_on_with_that_epoch(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.tally.epoch, worker.middle = 2, True
    worker.train(1)
    folder = worker.keeper.save()
    worker.keeper.finish()
    assert folder.name == "step-00000001"
    resumed = Worker(tmp_path).keeper.resume()
    assert resumed and resumed.epoch == 2


def test_the_scripts_own_state_is_kept(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.keeper.save(0, extra={"seen": (1, 2), "best": float("inf"), "ids": torch.arange(3)})
    worker.keeper.finish()
    resumed = Worker(tmp_path).keeper.resume()
    assert resumed and resumed.extra["seen"] == (1, 2) and resumed.extra["best"] == float("inf")
    assert torch.equal(resumed.extra["ids"], torch.arange(3))


def test_extra_state_that_cannot_be_kept_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadCheckpoint, match=r"'extra.model', a Linear"):
        Worker(tmp_path).keeper.save(0, extra={"model": nn.Linear(1, 1)})
    assert names(tmp_path) == []


# -- beside training ---------------------------------------------------------------------------------------------------


class Slow(Disk):
    """Writes when it is told to."""

    def __init__(self) -> None:
        self.may_write, self.begun = threading.Event(), threading.Event()

    def write(self, path: Path, pieces: Iterable[memoryview | bytes]) -> Facts:
        self.begun.set()
        assert self.may_write.wait(20)
        return super().write(path, pieces)


def test_training_goes_on_while_it_is_written_and_the_values_are_those_of_the_call(tmp_path: Path) -> None:
    disk = Slow()
    worker = Worker(tmp_path, disk=disk)
    worker.train(1)
    expected = worker.everything()
    worker.keeper.save(0)
    assert disk.begun.wait(20)
    worker.train(2)
    assert names(tmp_path) == []
    disk.may_write.set()
    worker.keeper.finish()
    after = Worker(tmp_path)
    after.keeper.resume()
    assert same(after.everything(), expected) and not same(after.everything(), worker.everything())


def test_the_next_save_waits_for_the_one_before(tmp_path: Path) -> None:
    disk = Slow()
    worker = Worker(tmp_path, disk=disk)
    worker.keeper.save(0)
    second = threading.Thread(target=lambda: worker.keeper.save(1))
    second.start()
    assert second.is_alive()
    disk.may_write.set()
    second.join(20)
    worker.keeper.finish()
    assert len(names(tmp_path)) == 2


class Full(Disk):
    def write(self, path: Path, pieces: Iterable[memoryview | bytes]) -> Facts:
        raise OSError(28, "No space left on device")


def test_what_goes_wrong_is_raised_at_the_next_save_or_at_the_end(tmp_path: Path) -> None:
    worker = Worker(tmp_path, disk=Full())
    worker.keeper.save(0)
    with pytest.raises(OSError, match="No space left"):
        worker.keeper.save(1)
    worker.keeper.save(2)
    with pytest.raises(OSError, match="No space left"):
        worker.keeper.finish()
    worker.keeper.finish()  # once


# -- which are kept ----------------------------------------------------------------------------------------------------


def test_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    for epoch, metric in enumerate([0.1, 0.9, 0.5, float("nan"), 0.7, 0.6]):
        worker.tally.epoch = epoch
        worker.train(epoch)
        worker.keeper.save(epoch, best=metric, keep=2)
    worker.keeper.finish()
    assert names(tmp_path) == ["epoch-0005", "epoch-0004", "epoch-0001"]
    best = weights(tmp_path / "checkpoints", "best")
    assert not torch.equal(best["weight"], weights(tmp_path / "checkpoints")["weight"])
    assert torch.equal(best["weight"], weights(tmp_path / "checkpoints", "epoch-0001")["weight"])


def test_all_are_kept_when_asked(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    for epoch in range(5):
        worker.keeper.save(epoch, keep=None)
    worker.keeper.finish()
    assert names(tmp_path) == ["epoch-0000.5", "epoch-0000.4", "epoch-0000.3", "epoch-0000.2", "epoch-0000"]


def test_what_else_lies_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    mine = tmp_path / "checkpoints" / "mine"
    mine.mkdir(parents=True)
    saved(tmp_path, epochs=5)
    assert mine.exists()


def test_weights_can_be_read_without_a_run(tmp_path: Path) -> None:
    worker = Worker(tmp_path, averages=lambda model: Averages(model, "ema", 0.5))
    worker.train(1)
    worker.train(2)
    worker.keeper.save(0)
    worker.keeper.finish()
    nn.Linear(3, 2).load_state_dict(weights(tmp_path / "checkpoints"))
    averaged = weights(tmp_path / "checkpoints", averaged=True)
    assert worker.averages and torch.equal(averaged["weight"], worker.averages.weights()["weight"])
    with pytest.raises(BadCheckpoint, match="no checkpoint 'epoch-0009'"):
        weights(tmp_path / "checkpoints", "epoch-0009")
    with pytest.raises(BadCheckpoint, match="has a metric"):
        weights(tmp_path / "checkpoints", "best")
    with pytest.raises(BadCheckpoint, match="no whole checkpoint"):
        weights(tmp_path)


def test_averages_go_on(tmp_path: Path) -> None:
    make = lambda model: Averages(model, "swa")  # noqa: E731
    before = saved(tmp_path, epochs=3, averages=make)
    after = Worker(tmp_path, averages=make)
    after.keeper.resume()
    assert before.averages and after.averages and after.averages.count == 3
    before.train(3)
    after.train(3)
    assert torch.equal(after.averages.weights()["weight"], before.averages.weights()["weight"])


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "difference"),
    [
        (lambda: nn.Linear(4, 2), r"'weight' is \[2, 3\] float32 in the checkpoint and \[2, 4\] float32 here"),
        (lambda: nn.Linear(3, 2).double(), r"'weight' is \[2, 3\] float32 in the checkpoint and \[2, 3\] float64 here"),
        (lambda: nn.Linear(3, 2, bias=False), "'bias' of the checkpoint is not in the model"),
        (lambda: nn.Sequential(nn.Linear(3, 2)), "'0.weight' is not in the checkpoint"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_with_the_first_difference(
    tmp_path: Path, model: Any, difference: str
) -> None:
    saved(tmp_path)
    with pytest.raises(BadCheckpoint, match=difference):
        Worker(tmp_path, model=model()).keeper.resume()


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    other = Worker(tmp_path)
    other.optimizer = torch.optim.Adam(other.model.parameters())
    other.unit.optimizers = (other.optimizer,)
    other.keeper._items = []
    other.keeper.add_unit(other.unit)
    with pytest.raises(BadCheckpoint, match="made with SGD and the script has Adam"):
        other.keeper.resume()


def test_a_checkpoint_without_the_model_is_refused(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.keeper._items = []
    worker.keeper.save(0)
    worker.keeper.finish()
    with pytest.raises(BadCheckpoint, match=r"holds no model.0"):
        Worker(tmp_path).keeper.resume()


# -- several workers ---------------------------------------------------------------------------------------------------


def test_workers_in_step_write_one_checkpoint_together(tmp_path: Path) -> None:
    def work(worker: Worker) -> str:
        worker.keeper.add("mine", lambda: worker.world.rank, lambda state: None, scope="each")
        worker.train(1)
        folder = worker.keeper.save(0)
        worker.keeper.finish()
        return folder.name

    assert in_step(tmp_path, 3, work) == ["epoch-0000"] * 3
    (manifest,) = Chain(tmp_path / "checkpoints").whole()
    assert {f"rank-{rank}.json" for rank in range(3)} | {"model-0.safetensors"} <= set(manifest.files)
    assert sum("model" in name for name in manifest.files) == 1


@pytest.mark.parametrize("now", [1, 2, 3, 5])
def test_another_number_of_workers_goes_on(tmp_path: Path, now: int) -> None:
    """Everyone has the model; who was there before has what was its own, who is new has the first one's."""

    def write(worker: Worker) -> None:
        worker.keeper.add("mine", lambda: worker.world.rank, lambda state: None, scope="each")
        worker.train(1)
        worker.keeper.save(0)
        worker.keeper.finish()

    in_step(tmp_path, 3, write)
    with torch.no_grad():
        expected = weights(tmp_path / "checkpoints")["weight"].clone()

    def read(worker: Worker) -> list[int]:
        mine: list[int] = []
        worker.keeper.add("mine", lambda: 0, mine.append, scope="each")
        assert worker.keeper.resume()
        assert torch.equal(worker.model.state_dict()["weight"], expected)
        return mine

    found = in_step(tmp_path, now, read) if now > 1 else [read(Worker(tmp_path))]
    assert found == [[0], [1], [2], [0], [0]][:now]


def test_workers_that_save_different_things_are_told(tmp_path: Path) -> None:
    with pytest.raises(Disagreement, match="0, 1"):
        in_step(tmp_path, 2, lambda worker: worker.keeper.save(worker.world.rank))


def test_strategies_that_let_models_drift_keep_each_ones_own(tmp_path: Path) -> None:
    def write(worker: Worker) -> list[torch.Tensor]:
        worker.train(worker.world.rank + 1)
        worker.keeper.save(0)
        worker.keeper.finish()
        return worker.everything()

    def read(worker: Worker) -> list[torch.Tensor]:
        worker.keeper.resume()
        return worker.everything()

    before = in_step(tmp_path, 2, write, "local-sgd")
    after = in_step(tmp_path, 3, read, "local-sgd")
    assert same(after[0], before[0]) and same(after[1], before[1]) and same(after[2], before[0])
    assert torch.equal(weights(tmp_path / "checkpoints")["weight"], before[0][0])


def test_workers_on_their_own_commit_their_own(tmp_path: Path) -> None:
    states = {}
    for rank, steps in ((1, 5), (0, 3)):
        worker = Worker(tmp_path, rank, 2, "ps-async")
        worker.keeper.add("mine", lambda rank=rank: rank * 10, lambda state: None, scope="each")  # type: ignore[misc]
        for _ in range(steps):
            worker.train(1)
        worker.keeper.save(0)
        worker.keeper.finish()
        states[rank] = worker.everything()
    assert names(tmp_path) == ["epoch-0000"]
    for rank, steps in ((0, 3), (1, 5), (2, 3)):
        mine: list[int] = []
        worker = Worker(tmp_path, rank, 3, "ps-async")
        worker.keeper.add("mine", lambda: 0, mine.append, scope="each")
        resumed = worker.keeper.resume()
        assert resumed and resumed.step == steps and mine == [10 if rank == 1 else 0]
        assert same(worker.everything(), states[0])  # the model is the first one's


@pytest.mark.parametrize("first", [0, 1])
def test_a_worker_goes_on_no_later_than_the_model(tmp_path: Path, first: int) -> None:
    for rank, epochs in ((0, first), (1, 3)):
        worker = Worker(tmp_path, rank, 2, "ps-async:data=dynamic")
        for epoch in range(epochs):
            worker.tally.epoch = epoch
            worker.train(1)
            worker.keeper.save(epoch)
        worker.keeper.finish()
    worker = Worker(tmp_path, 1, 2, "ps-async:data=dynamic")
    resumed = worker.keeper.resume()
    assert resumed.epoch == 1 and "rank-1" in str(resumed.path) if first else resumed is None  # type: ignore[union-attr]


def test_a_worker_that_begins_late_has_its_whole_share_to_do(tmp_path: Path) -> None:
    """What a faster one of the same attempt has saved is not a place to go on from: only who is started again goes on
    from there, and so do all of the next attempt."""

    def resumed(gang: str, starts: int) -> int | None:
        found = Worker(tmp_path, 1, 2, "ps-async", gang=gang, starts=starts).keeper.resume()
        return found.epoch if found else None

    saved(tmp_path, epochs=2, size=2, strategy="ps-async", gang="job-1")
    assert (resumed("job-1", 0), resumed("job-1", 1), resumed("job-2", 0)) == (None, 2, 2)
    saved(tmp_path, epochs=1, size=2, strategy="ps-async", gang="job-2")
    assert (resumed("job-2", 0), resumed("job-2", 1)) == (2, 1)  # late: as the others of the attempt began


def test_a_worker_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.train.checkpoint.together.PATIENCE", 0.2)

    def work(worker: Worker) -> str:
        if worker.world.rank == 1:
            monkeypatch.setattr(worker.keeper, "_write", lambda *args: None)
        worker.keeper.save(0)
        try:
            worker.keeper.finish()
        except TrainError as error:
            return error.message
        return ""

    told = in_step(tmp_path, 2, work)
    assert "worker-1 did not come" in told[0] and not told[1]
    assert names(tmp_path) == []


def test_a_run_that_failed_waits_for_nobody(tmp_path: Path) -> None:
    def work(worker: Worker) -> None:
        if worker.world.rank == 1:
            worker.keeper._write = lambda *args: None  # type: ignore[method-assign]
        worker.keeper.save(0)
        worker.keeper.finish(ok=False)

    in_step(tmp_path, 2, work)
    assert names(tmp_path) == []


def test_workers_with_folders_of_their_own_commit_in_each(tmp_path: Path) -> None:
    from shoal.train.group.threads import ThreadGroup
    from tests.train.ranks import run_ranks

    groups = ThreadGroup.make(2, patience=20.0)

    def work(rank: int) -> None:
        worker = Worker(tmp_path / f"node-{rank}", rank, 2, "allreduce", groups[rank])
        worker.keeper.save(0)
        worker.keeper.finish()

    run_ranks(2, work)
    assert names(tmp_path / "node-0") == names(tmp_path / "node-1") == ["epoch-0000"]
    groups = ThreadGroup.make(2, patience=20.0)
    resumed = run_ranks(
        2, lambda rank: Worker(tmp_path / f"node-{rank}", rank, 2, "allreduce", groups[rank]).keeper.resume()
    )
    assert resumed == [None, None]  # the second node has no model: said in the log, and in the docs


# -- partitions, servers -----------------------------------------------------------------------------------------------


class Halves:
    """A model of which each worker holds a part; whole on request of all."""

    replica, replicas = 0, 1

    def __init__(self) -> None:
        self.value, self.momentum, self.asked = torch.zeros(2), 0.0, 0

    def model_state(self, model: nn.Module) -> dict[str, torch.Tensor]:
        self.asked += 1
        return {"w": self.value.clone()}

    def state(self) -> dict[str, Any]:
        groups = [{"momentum": self.momentum, "params": ["w"]}]
        return {"optimizers": [{"name": "SGD", "groups": groups, "state": {}}]}

    def load(self, model_state: Any, state: Any) -> None:
        (optimizer,) = state["optimizers"]
        self.value, self.momentum = model_state["w"].clone(), optimizer["groups"][0]["momentum"]


def test_a_model_in_parts_is_asked_for_on_all_and_written_once(tmp_path: Path) -> None:
    def parts(worker: Worker) -> Halves:
        halves = Halves()
        worker.unit.partition = halves  # type: ignore[assignment]
        worker.keeper._items = []
        worker.keeper.add_unit(worker.unit)
        return halves

    def write(worker: Worker) -> int:
        halves = parts(worker)
        halves.value, halves.momentum = torch.tensor([1.0, 2.0]), 0.5
        worker.keeper.save(0)
        worker.keeper.finish()
        return halves.asked

    def read(worker: Worker) -> tuple[list[float], float]:
        halves = parts(worker)
        worker.keeper.resume()
        return halves.value.tolist(), halves.momentum

    assert in_step(tmp_path, 2, write, "fsdp") == [1, 1]
    assert in_step(tmp_path, 3, read, "fsdp") == [([1.0, 2.0], 0.5)] * 3


class Servers:
    """A synchroniser whose servers write a file into the checkpoint."""

    needs_gradient = True

    def __init__(self) -> None:
        self.content = b"state of the servers"

    def state(self) -> dict[str, Any]:
        facts = Disk().write(beside.folder() / "ps-0-of-1.safetensors", [self.content])
        beside.wrote("ps-0-of-1.safetensors", facts.bytes, facts.sha256)
        return {"version": 7}

    def load(self, state: Any) -> None:
        self.content = (beside.folder() / "ps-0-of-1.safetensors").read_bytes()
        self.version = state["version"]


def test_files_of_servers_belong_to_the_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path, sync=Servers())
    assert "ps-0-of-1.safetensors" in Chain(tmp_path / "checkpoints").whole()[0].files
    after = Servers()
    after.content = b""
    worker = Worker(tmp_path, sync=after)
    assert worker.keeper.resume()
    assert (after.content, after.version) == (b"state of the servers", 7)
    (tmp_path / "checkpoints" / "epoch-0000" / "ps-0-of-1.safetensors").write_bytes(b"damaged")
    assert Worker(tmp_path, sync=Servers()).keeper.resume() is None
    with pytest.raises(TrainError, match="no checkpoint is being saved"):
        beside.folder()
