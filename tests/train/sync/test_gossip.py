"""Gossip over real links, a thread for each worker: shared memory and TCP, who dies, who joins, who is slow."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from shoal.errors import BadSpec
from shoal.train import house
from shoal.train.errors import Disagreement, PeerLost, WaitedTooLong
from shoal.train.gossip import mesh as mesh_module
from shoal.train.gossip import start
from shoal.train.gossip.mesh import Mesh
from shoal.train.gossip.pairs import Pairs
from shoal.train.gossip.push import TAKES, Push
from shoal.train.gossip.space import Space
from shoal.train.sync.gossip import Gossip
from shoal.train.world import World
from tests.train.ranks import Line, run_ranks, setting, step, worlds

WIDE = torch.float64  # enough digits for the halves of a few exchanges: sums are exact
LIMIT = 20.0


@dataclass
class Worker:
    """One worker of a gossip that runs in this thread."""

    rank: int
    world: World
    model: Any
    optimizer: Optimizer
    sync: Gossip

    @classmethod
    def join(cls, strategy: str, world: World, model: Any = None, unit: int = 0) -> Worker:
        model = model or Line(((8.0 + world.rank,) * 50, (3.0,)), WIDE)
        optimizer = SGD(model.parameters(), lr=1.0)
        sync = Gossip(setting(strategy, world, unit=unit))
        sync.attach(model, [optimizer])
        return cls(world.rank, world, model, optimizer, sync)

    @property
    def space(self) -> Space:
        return self.sync.spaces[id(self.optimizer)]

    def train(self, steps: int, gradient: float) -> None:
        for _ in range(steps):
            self.model.push(gradient)
            step(self.sync, self.optimizer)

    def end(self) -> None:
        self.sync.finish()
        house.close(self.world)

    def die(self) -> None:
        """As a process that is killed: every connection ends, nothing is said."""
        mesh = self.space.mesh
        mesh.ending = True
        house.close(self.world)
        for line in list(mesh._lines.values()):
            line.link.close()
        mesh._watch.close()
        me = self.world.workers[self.rank]
        mesh_module._open.pop((me.host, me.port), None)


def gang(
    strategy: str,
    size: int,
    work: Callable[[Worker], Any],
    shared: Path | None = None,
    nodes: Sequence[str] | None = None,
) -> list[Any]:
    """`work(worker)` on every rank; none leaves before all are done."""
    every, done = worlds(size, shared, nodes), threading.Barrier(size)

    def one(rank: int) -> Any:
        worker = Worker.join(strategy, every[rank])
        try:
            told = work(worker)
            done.wait(LIMIT)
        finally:
            worker.end()
        return told

    return run_ranks(size, one)


def total(told: Sequence[tuple[Tensor, float]]) -> tuple[float, float]:
    return sum(float(x[0]) for x, _ in told), sum(weight for _, weight in told)


PLACES = [
    pytest.param(None, id="one host, no shared memory"),
    pytest.param(["a"] * 6, id="shared memory"),
    pytest.param(["a", "b", "a", "b", "a", "b"], id="two hosts"),
]


@pytest.mark.parametrize("nodes", PLACES)
@pytest.mark.parametrize(
    ("strategy", "size"),
    [
        ("gossip", 2),
        ("gossip:topology=ring", 3),
        ("gossip:topology=complete", 4),
        ("gossip:topology=one-peer", 5),
        ("gossip:topology=given,graph=0>1;1>2;2>0", 3),
        ("gossip:mode=push", 2),
        ("gossip:mode=push,topology=one-peer", 3),
        ("gossip:mode=push,topology=ring", 4),
        ("gossip:every=3", 2),
    ],
)
def test_no_gradient_is_lost_whoever_averages_when(
    strategy: str, size: int, nodes: list[str] | None, tmp_path: Path
) -> None:
    quiet = threading.Barrier(size)

    def work(worker: Worker) -> tuple[Tensor, float]:
        assert worker.model.flat()[0] == 8.0, "all begin with the values of the lowest"
        gradient = float(worker.rank + 1)
        if "push" in strategy:  # a change counts by the weight of the moment, so it comes before anybody pushes
            worker.space.replica.receive([torch.full((51,), -12 * gradient, dtype=WIDE)], 0.0)
            gradient = 0.0
        quiet.wait(LIMIT)
        worker.train(12, gradient)
        worker.space.couriers.wait(LIMIT)
        quiet.wait(LIMIT)  # nothing is under way any more
        return worker.space.replica.x[0].clone(), worker.space.replica.weight

    told = gang(strategy, size, work, tmp_path if nodes else None, nodes[:size] if nodes else None)
    expected = 8.0 * size - 12 * sum(range(1, size + 1))
    found, weight = total(told)
    assert found == pytest.approx(expected, abs=1e-9) and weight == pytest.approx(size)
    if "push" not in strategy:
        assert found == expected


@pytest.mark.parametrize("name", ["fp16", "bf16", "onebit", "topk"])
def test_squeezed_pairs_lose_no_gradient_and_send_less(name: str) -> None:
    def work(worker: Worker) -> tuple[Tensor, int]:
        for _ in range(10):
            worker.train(1, float(worker.rank + 1))
            worker.space.couriers.wait(LIMIT)
        both.wait(LIMIT)
        return worker.space.replica.x[0].clone(), worker.sync.setting.seeing.bytes_sent

    both = threading.Barrier(2)
    told = gang(f"gossip:compress={name}", 2, work)
    torch.testing.assert_close(told[0][0] + told[1][0], torch.tensor([16.0 - 30] * 50 + [6.0 - 30], dtype=WIDE))
    assert 0 < told[0][1] < 10 * 51 * 8 and told[1][1] == 0  # the passive one only answers


def test_pushes_travel_in_sixteen_bits_and_lose_nothing() -> None:
    def work(worker: Worker) -> tuple[Tensor, float]:
        worker.space.replica.receive([torch.full((51,), -(worker.rank + 1) * 10 / 3, dtype=WIDE)], 0.0)
        both.wait(LIMIT)
        worker.train(10, 0.0)
        worker.space.couriers.wait(LIMIT)
        both.wait(LIMIT)
        return worker.space.replica.x[0].clone(), worker.space.replica.weight

    both = threading.Barrier(2)
    found, weight = total(gang("gossip:mode=push,compress=fp16", 2, work))
    assert found == pytest.approx(16.0 - 10.0, abs=1e-9) and weight == pytest.approx(2.0)


@pytest.mark.parametrize("name", ["topk", "onebit"])
def test_shares_are_not_squeezed_coarsely(name: str) -> None:
    with pytest.raises(BadSpec, match="shares that arrive in part"):
        gang(f"gossip:mode=push,compress={name}", 1, lambda worker: None)


def test_powersgd_is_refused() -> None:
    with pytest.raises(BadSpec, match="powersgd"):
        gang("gossip:compress=powersgd", 1, lambda worker: None)


# -- nobody waits for the slow -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["pairs", "push"])
def test_a_neighbour_that_does_not_answer_holds_nobody_up(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker 1's door is stuck. The others take all their steps before it opens again."""
    opens, stuck = threading.Event(), threading.Event()
    kind = Pairs if mode == "pairs" else Push
    handle = kind.handle

    def slow(self: Any, rank: int, meta: Any, payload: Any) -> Any:
        if self.space.mesh.members.me == 1 and not opens.is_set():
            stuck.set()
            assert opens.wait(LIMIT)
        return handle(self, rank, meta, payload)

    monkeypatch.setattr(kind, "handle", slow)
    gradient = 1.0 if mode == "pairs" else 0.0  # of pushes, a change counts by the weight of the moment
    three, everyone = threading.Barrier(3), threading.Barrier(4)

    def work(worker: Worker) -> tuple[Tensor, float]:
        if worker.rank != 1:
            worker.train(8, gradient)
            assert worker.space.steps == 8 and not opens.is_set()
            three.wait(LIMIT)
        else:
            worker.train(8, gradient)  # its own training goes on as well
            assert stuck.wait(LIMIT)
        opens.set() if worker.rank == 0 else None
        everyone.wait(LIMIT)
        worker.space.couriers.close(LIMIT)
        everyone.wait(LIMIT)
        return worker.space.replica.x[0].clone(), worker.space.replica.weight

    found, weight = total(gang(f"gossip:topology=complete,mode={mode}", 4, work))
    assert found == pytest.approx(32.0 - 32 * gradient, abs=1e-9) and weight == pytest.approx(4.0)


def test_who_answers_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers wait for no other worker: so whatever calls there are, no circle of waits can close."""
    answering = threading.local()
    handle, ask = Space.handle, Mesh.ask

    def watched(self: Space, *rest: Any) -> Any:
        answering.now = True
        try:
            return handle(self, *rest)
        finally:
            answering.now = False

    def checked(self: Mesh, *rest: Any) -> Any:
        assert not getattr(answering, "now", False), "an answer asked another worker"
        return ask(self, *rest)

    monkeypatch.setattr(Space, "handle", watched)
    monkeypatch.setattr(Mesh, "ask", checked)
    for mode in ("pairs", "push"):
        gang(f"gossip:mode={mode}", 4, lambda worker: worker.train(6, 1.0))


# -- who comes and goes ------------------------------------------------------------------------------------------------


@contextmanager
def running(strategy: str, every: Sequence[World], ranks: Sequence[int]) -> Iterator[list[Worker]]:
    """Workers of this thread, trained by turns."""
    workers = run_ranks(ranks, lambda rank: Worker.join(strategy, every[rank]))
    try:
        yield workers
    finally:
        for worker in workers:
            worker.end()


def until(true: Callable[[], bool]) -> None:
    """Waits for what must come about."""
    seen = threading.Event()
    for _ in range(2000):
        if true():
            return
        seen.wait(0.01)
    raise AssertionError("it did not come about")


@pytest.mark.parametrize("strategy", ["gossip:topology=ring", "gossip:mode=push,topology=ring"])
def test_a_worker_that_dies_is_dropped_at_once_and_the_others_go_on(strategy: str) -> None:
    with running(strategy, worlds(4), range(4)) as workers:
        for _ in range(6):
            for worker in workers:
                worker.train(1, 1.0)
                worker.space.couriers.wait(LIMIT)
        dead = workers.pop(1)
        dead.die()
        until(lambda: all(worker.space.mesh.members.present() == (0, 2, 3) for worker in workers))
        for _ in range(6):
            for worker in workers:
                worker.train(1, 1.0)
                worker.space.couriers.wait(LIMIT)
        until(lambda: all(worker.space.mesh.members.present() == (0, 2, 3) for worker in workers))
        assert all(worker.space.steps == 12 for worker in workers)
        assert all(1 not in worker.space.mesh._lines for worker in workers)
        assert all(worker.space.replica.x[0].isfinite().all() for worker in workers)


@pytest.mark.parametrize("strategy", ["gossip", "gossip:mode=push"])
def test_a_worker_that_joins_begins_with_what_the_others_have(strategy: str) -> None:
    """Rank 2 is in the roster but comes late: it comes back as another life, here after it was given up."""
    every = worlds(3)
    with running(strategy, every, range(3)) as workers:
        for worker in workers:
            worker.train(5, 1.0)
            worker.space.couriers.wait(LIMIT)
        workers.pop(2).die()
        until(lambda: workers[0].space.mesh.members.present() == (0, 1))
        again = Worker.join(strategy, every[2])
        workers.append(again)
        assert again.model.flat()[0] < 8.0  # not from the beginning
        until(lambda: workers[0].space.mesh.members.present() == (0, 1, 2))
        for _ in range(6):
            for worker in workers:
                worker.train(1, 1.0)
                worker.space.couriers.wait(LIMIT)
        until(lambda: all(worker.space.mesh.members.present() == (0, 1, 2) for worker in workers))
        assert sum(again.sync.setting.seeing.staleness.elements()) > 0  # others have averaged with it


def test_the_end_of_an_old_connection_says_nothing_about_the_process_that_came_after() -> None:
    """A call over a line to the process before, or the end of its connection, may be noticed late."""
    every = worlds(3)
    with running("gossip:mode=push,topology=complete", every, range(3)) as workers:
        for worker in workers:
            worker.train(2, 1.0)
            worker.space.couriers.wait(LIMIT)
        mesh = workers[0].space.mesh
        before = mesh.members.process(2)
        workers.pop(2).die()
        until(lambda: all(worker.space.mesh.members.present() == (0, 1) for worker in workers))
        workers.append(Worker.join("gossip:mode=push,topology=complete", every[2]))
        until(lambda: all(worker.space.mesh.members.present() == (0, 1, 2) for worker in workers))
        line = mesh._line(2, LIMIT)
        mesh.lost(2, before)
        assert mesh.members.present() == (0, 1, 2) and mesh._lines[2] is line and not line.link.closed
        mesh._meet(2, line.start)  # it calls here as well now: the line to it is kept
        assert not line.link.closed
        mesh.lost(2, line.start)
        assert mesh.members.present() == (0, 1) and line.link.closed


def test_the_lowest_rank_may_join_late_too() -> None:
    every = worlds(2)
    with running("gossip", every, range(2)) as workers:
        for worker in workers:
            worker.train(4, 1.0)
        workers.pop(0).die()
        until(lambda: workers[0].space.mesh.members.present() == (1,))
        workers[0].train(2, 1.0)
        workers.append(Worker.join("gossip", every[0]))
        assert torch.equal(workers[1].model.flat(), workers[0].space.replica.x[0])


def test_who_ends_leaves_and_the_others_are_not_alarmed(caplog: pytest.LogCaptureFixture, heard: None) -> None:
    with running("gossip:topology=complete", worlds(3), range(3)) as workers:
        for worker in workers:
            worker.train(4, 1.0)
            worker.space.couriers.wait(LIMIT)
        workers.pop(1).end()
        until(lambda: workers[0].space.mesh.members.present() == (0, 2))
        workers[0].train(3, 1.0)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_a_push_sum_is_left_to_those_who_go_on() -> None:
    with running("gossip:mode=push,topology=complete", worlds(3), range(3)) as workers:
        for worker in workers:
            worker.train(3, 0.0)
            worker.space.couriers.wait(LIMIT)
        workers.pop(2).end()
        weight = sum(worker.space.replica.weight for worker in workers)
        values = sum(float(worker.space.replica.x[0][0]) for worker in workers)
    assert weight == pytest.approx(3.0) and values == pytest.approx(24.0)


def test_workers_with_different_models_are_told_the_first_difference() -> None:
    every = worlds(2)

    def one(rank: int) -> str:
        with pytest.raises(Disagreement) as caught:
            Worker.join("gossip", every[rank], Line(((1.0,),) * (rank + 1)))
        house.close(every[rank])
        return caught.value.message

    for message in run_ranks(2, one):
        assert "nothing more" in message and "parameter parts.1" in message


def test_a_worker_that_never_comes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start.Hall.begin, "__defaults__", (0.2,))
    (first, *_) = worlds(2)
    with pytest.raises(WaitedTooLong, match="worker-1") as caught:
        Worker.join("gossip", first)
    house.close(first)
    assert caught.value.who == ["worker-1"]


# -- pushes, exactly once ----------------------------------------------------------------------------------------------


def test_a_push_that_comes_twice_counts_once_and_too_many_are_refused() -> None:
    with running("gossip:mode=push", worlds(2), range(2)) as workers:
        space = workers[0].space
        mode = space.mode
        assert isinstance(mode, Push)
        share = memoryview(bytearray(space.replica.layout.bytes))
        meta = {"kind": "push", "weight": 0.25, "start": 7, "last": False}
        answers = [mode.handle(1, {**meta, "number": number}, share)[0]["kind"] for number in (1, 1, 1, 2, 3)]
        assert answers == ["push", "push", "push", "push", "refused"] and TAKES == 2
        assert space.replica.weight == 1.5
        assert mode.handle(1, {"kind": "last", "start": 7}, share)[0]["number"] == 2
        assert mode.handle(1, {"kind": "last", "start": 8}, share)[0]["number"] == 0  # another start of that worker


@pytest.mark.parametrize("strategy", ["gossip", "gossip:mode=push"])
def test_an_exchange_whose_slot_is_gone_changes_nothing(strategy: str, tmp_path: Path) -> None:
    with running(strategy, worlds(2, tmp_path, ["a", "a"]), range(2)) as workers:
        space = workers[0].space
        meta = {"kind": "pair" if strategy == "gossip" else "push", "slot": "gossip-0.0-w1-w0-7"}
        answer, _ = space.handle(1, {**meta, "number": 1, "weight": 0.5, "start": 7, "last": False}, memoryview(b""))
        assert answer == {"kind": "closed"}
        assert (space.replica.weight, space.replica.version) == (1.0, 0)


def test_a_share_that_nobody_took_comes_back() -> None:
    with running("gossip:mode=push", worlds(2), range(2)) as workers:
        workers.pop(1).die()
        workers[0].space.couriers.begin([1])
        workers[0].space.couriers.close(LIMIT)
        assert workers[0].space.replica.weight == 1.0
        assert workers[0].space.replica.x[0][0] == 8.0


def test_a_share_to_one_who_is_gone_undoes_nothing_when_it_comes_back_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes seconds to find out that a neighbour cannot be reached; meanwhile the training goes on, and may end."""
    with running("gossip:mode=push", worlds(2), range(2)) as workers:
        workers.pop(1).die()
        (worker,) = workers
        tried, found_out = threading.Event(), threading.Event()

        def no_answer(*_: object) -> None:
            tried.set()
            found_out.wait(LIMIT)
            raise PeerLost("worker-1 is gone")

        monkeypatch.setattr(worker.space.mesh, "ask", no_answer)
        monkeypatch.setattr(worker.space, "step", worker.space.replica.step)
        worker.space.couriers.begin([1])
        assert tried.wait(LIMIT)
        worker.train(4, 1.0)
        found_out.set()
        worker.space.couriers.wait(LIMIT)
        assert worker.space.replica.weight == 1.0
        worker.space.replica.step()
        assert float(worker.model.parts[0].detach()[0]) == 4.0  # 8, and four steps


def test_what_comes_back_after_the_last_exchange_is_not_the_model() -> None:
    with running("gossip:mode=push", worlds(2), range(2)) as workers:
        first = workers[0]
        for worker in workers:
            worker.train(1, 0.0)
            worker.space.couriers.wait(LIMIT)
        late = first.space.replica.layout.empty()
        weight = first.space.replica.give(0.25, late)
        part = first.space.mode.part

        def part_and_come_back() -> None:
            part()
            assert first.space.replica.weight == 0.0, "everything is worker-1's now"
            first.space.replica.regain([torch.zeros_like(one) for one in late], weight)

        first.space.mode.part = part_and_come_back  # type: ignore[method-assign]
        first.space.finish()
        assert float(first.model.parts[0].detach()[0]) == 8.0


def test_a_share_whose_answer_was_lost_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The link breaks after the push has arrived: the sender asks, and learns that it did."""
    with running("gossip:mode=push", worlds(2), range(2)) as workers:
        workers[1].space.mesh.enter(workers[1].space.name, workers[1].space)  # as its first step would
        handle = Push.handle

        def cut(self: Push, rank: int, meta: Any, payload: Any) -> Any:
            answer = handle(self, rank, meta, payload)
            if meta["kind"] == "push":
                workers[0].space.mesh._lines[1].link.close()
            return answer

        monkeypatch.setattr(Push, "handle", cut)
        workers[0].space.couriers.begin([1])
        workers[0].space.couriers.close(LIMIT)
        monkeypatch.undo()
        assert [worker.space.replica.weight for worker in workers] == [0.5, 1.5]


# -- models ------------------------------------------------------------------------------------------------------------


class Normed(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([4.0 + rank]))
        self.narrow = nn.Parameter(torch.tensor([2.0 + rank], dtype=torch.bfloat16))
        self.wide = nn.Parameter(torch.tensor([2.0 + rank], dtype=torch.float64))
        self.frozen = nn.Parameter(torch.tensor([7.0 + rank]), requires_grad=False)
        self.register_buffer("mean", torch.tensor([16.0 * rank]))
        self.register_buffer("count", torch.tensor(10 * rank))

    def push(self, gradient: float) -> None:
        for one in (self.weight, self.narrow, self.wide):
            one.grad = torch.full_like(one, gradient)


def test_every_kind_of_number_and_the_buffers_are_averaged(tmp_path: Path) -> None:
    every = worlds(2, tmp_path)
    workers = run_ranks(2, lambda rank: Worker.join("gossip", every[rank], Normed(rank)))
    for worker in workers:
        model = worker.model
        assert [one.item() for one in (model.weight, model.narrow, model.wide, model.frozen)] == [4.0, 2.0, 2.0, 7.0]
        assert float(model.mean) == 0.0 and int(model.count) == 0
        model.mean += 8.0 * worker.rank
        model.count += 1 + worker.rank
    for worker in reversed(workers):  # the passive one has its step in when it is called
        worker.train(1, float(worker.rank))
    workers[0].space.couriers.wait(LIMIT)
    for worker in workers:
        worker.train(1, 0.0)
        worker.space.couriers.wait(LIMIT)
        assert float(worker.model.mean) == 4.0 and int(worker.model.count) == 1 + worker.rank
        assert [one.item() for one in (worker.model.weight, worker.model.narrow, worker.model.wide)] == [3.5, 1.5, 1.5]
    for worker in workers:
        worker.end()
    assert not list(tmp_path.rglob("gossip-*")), "shared memory is given back"


def test_two_models_gossip_through_one_door() -> None:
    every = worlds(2)

    def one(rank: int) -> list[Tensor]:
        workers = [Worker.join("gossip", every[rank], unit=unit) for unit in (0, 1)]
        for worker in workers:
            worker.train(4, 1.0 + worker.sync.setting.unit)
            worker.space.couriers.wait(LIMIT)
        done.wait(LIMIT)
        values = [worker.space.replica.x[0].clone() for worker in workers]
        done.wait(LIMIT)
        for worker in workers:
            worker.sync.finish()
            worker.sync.finish()  # harmless twice
        house.close(every[rank])
        return values

    done = threading.Barrier(2)
    (a, b), (c, d) = run_ranks(2, one)
    assert a[0] + c[0] == 16.0 - 8.0 and b[0] + d[0] == 16.0 - 16.0


def test_after_a_checkpoint_the_exchange_begins_with_what_was_loaded() -> None:
    with running("gossip:mode=push", worlds(2), range(2)) as workers:
        for worker in workers:
            worker.train(3, 1.0)
            worker.space.couriers.wait(LIMIT)
        state = dict(workers[0].sync.state())
        for worker in workers:
            with torch.no_grad():
                for part in worker.model.parts:
                    part.fill_(100.0)
            worker.sync.load(state)
        assert [worker.space.replica.weight for worker in workers] == [1.0, 1.0]
        assert all(worker.space.replica.x[0].eq(100.0).all() and worker.space.steps == 3 for worker in workers)


@pytest.mark.parametrize("strategy", ["gossip:topology=complete", "gossip:mode=push"])
def test_nobody_averages_with_a_worker_that_may_still_load_a_checkpoint(strategy: str) -> None:
    with running(strategy, worlds(2), range(2)) as (early, late):
        early.train(3, 1.0)
        early.space.couriers.wait(LIMIT)
        assert late.space.replica.version == 0 and late.space.replica.x[0][0] == 8.0
        assert early.space.replica.weight == 1.0 and early.space.replica.x[0][0] == 5.0, "nothing of it is lost"
        late.sync.load({"0": {"steps": 2}})
        late.train(1, 1.0)
        early.train(1, 1.0)
        early.space.couriers.wait(LIMIT)
        assert late.space.replica.version > 0


def test_who_joins_a_training_under_way_keeps_what_it_took_there() -> None:
    every = worlds(2)
    with running("gossip", every, range(2)) as workers:
        for worker in workers:
            worker.train(4, 1.0)
        state = dict(workers[0].sync.state())
        workers.pop(0).die()
        until(lambda: workers[0].space.mesh.members.present() == (1,))
        workers.append(Worker.join("gossip", every[0]))
        with torch.no_grad():
            for part in workers[1].model.parts:
                part.fill_(100.0)  # its old checkpoint
        workers[1].sync.load(state)
        assert torch.equal(workers[1].model.flat(), workers[0].space.replica.x[0])
        workers[1].train(1, 1.0)
        assert workers[1].space.replica.x[0].lt(8.0).all() and workers[1].space.steps == 5


def test_it_says_what_it_does() -> None:
    def work(worker: Worker) -> tuple[str, int]:
        facts = worker.sync.facts()
        return str(facts["neighbours"]), int(facts["bytes_per_step"])

    size = 51 * 8
    assert gang("gossip:topology=ring", 3, work) == [
        ("active, calls worker-1", size), ("passive, called by worker-0, worker-2", 2 * size),
        ("active, calls worker-1", size),
    ]  # fmt: skip
    assert gang("gossip:mode=push,topology=ring", 3, work)[0] == ("pushes to worker-1, worker-2", 2 * size)
