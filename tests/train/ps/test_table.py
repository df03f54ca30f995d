"""Tables behind a real listener, with workers as threads: the rules, exactly once, embeddings in a model."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from shoal.strategy import parse
from shoal.train.api import Setting
from shoal.train.embedding import Embedding, Tables
from shoal.train.errors import BadModel, Disagreement, NotFinite, PeerLost
from shoal.train.ps import table_client
from shoal.train.ps.rows import TableInfo
from shoal.train.ps.table import SERVICE, TableService
from shoal.train.ps.table_client import Local, Remote
from shoal.train.ps.table_snapshots import TableSnapshots
from shoal.train.seeing import Seeing
from shoal.train.wire import host as wire
from shoal.train.wire.host import Host
from shoal.train.world import Peer, World

SECRET = b"a secret of the attempt"
INFO = TableInfo("t", 1000, 4, "sgd", {"lr": 1.0}, std=0.0)


@contextmanager
def serving(folder: Path, strategy: str = "ps-async", servers: int = 1, workers: int = 2) -> Iterator[World]:
    folder.mkdir(exist_ok=True)
    with ExitStack() as stack:
        peers = []
        for index in range(servers):
            service = TableService(folder, index, servers, parse(strategy), workers)
            host = stack.enter_context(Host(SECRET, {SERVICE: service}))
            peers.append(Peer(f"server-{index}", index, "here", host.host, host.port))
        crew = tuple(Peer(f"worker-{rank}", rank, "here", "127.0.0.1", 0) for rank in range(workers))
        yield World(size=workers, source="shoal", workers=crew, servers=tuple(peers), secret=SECRET)


def remote(world: World, rank: int = 0, info: TableInfo = INFO) -> Remote:
    return Remote(info, replace(world, rank=rank), Seeing())


def ones(count: int) -> torch.Tensor:
    return torch.ones(count, 4)


def test_a_table_of_a_lost_machine_comes_back_from_its_snapshot_and_takes_no_push_twice(tmp_path: Path) -> None:
    rows, names = torch.tensor([3, 5]), ("lost", "new")
    kept = [TableSnapshots(tmp_path / "snapshots", "server-0", "attempt", 3600.0) for _ in names]
    services = [
        TableService(tmp_path / name, 0, 1, parse("ps-async"), 1, snapshots=one)
        for name, one in zip(names, kept, strict=True)
    ]
    caller = wire.Peer("worker-0", "127.0.0.1", 1)

    def push(service: TableService, seq: int) -> dict[str, Any]:
        payload = memoryview(bytearray(rows.numpy().tobytes() + ones(2).numpy().tobytes()))
        meta = {"kind": "push", "table": "t", "seq": seq, "base": 0, "clock": seq, "hyper": {}}
        return dict(service.handle(caller, meta, payload)[0])

    opening = {"kind": "open", "table": INFO.to_json(), "worker": 0}
    services[0].handle(caller, opening, memoryview(b""))
    services[0].handle(caller, {"kind": "pull", "table": "t"}, rows.numpy().data.cast("B"))
    push(services[0], 1)
    push(services[0], 2)
    kept[0].take()
    push(services[0], 3)
    told, _ = services[1].handle(caller, opening, memoryview(b""))
    assert (told["version"], told["seq"], told["rows"]) == (2, 2, 2)
    assert push(services[1], 2)["version"] == 2 and push(services[1], 3)["version"] == 3
    values = services[1].handle(caller, {"kind": "pull", "table": "t"}, rows.numpy().data.cast("B"))[1][0]
    assert torch.equal(torch.frombuffer(values, dtype=torch.float32), torch.full((8,), -3.0))


@pytest.mark.parametrize("servers", [1, 3])
def test_rows_are_pulled_and_pushed_wherever_they_lie(tmp_path: Path, servers: int) -> None:
    with serving(tmp_path, servers=servers) as world:
        table = remote(world)
        rows = torch.tensor([0, 1, 2, 7, 500, 999])
        assert torch.equal(table.pull(rows, training=True), torch.zeros(6, 4))
        table.push(rows, ones(6) * torch.arange(6.0)[:, None], {})
        assert torch.equal(table.pull(rows, training=False), -ones(6) * torch.arange(6.0)[:, None])
        assert table.facts()["rows"] == 6 and len(table.facts()["bytes"]) == servers
        table.close()


def test_every_push_of_every_worker_counts_once(tmp_path: Path) -> None:
    rows = torch.arange(50)
    with serving(tmp_path, workers=4) as world:
        tables = [remote(world, rank) for rank in range(4)]

        def work(rank: int) -> None:
            for _ in range(10):
                tables[rank].pull(rows, training=True)
                tables[rank].push(rows, ones(50) * (rank + 1), {})

        _together(work, 4)
        assert torch.equal(tables[0].pull(rows, training=False), -ones(50) * 10 * (1 + 2 + 3 + 4))


def test_ps_sync_waits_for_all_and_applies_their_mean(tmp_path: Path) -> None:
    with serving(tmp_path, "ps-sync", workers=2) as world:
        tables = [remote(world, rank) for rank in range(2)]
        seen: list[list[float]] = [[], []]

        def work(rank: int) -> None:
            for _ in range(5):
                values = tables[rank].pull(torch.tensor([rank, 9]), training=True)
                seen[rank].append(float(values[1, 0]))
                tables[rank].push(torch.tensor([rank, 9]), ones(2) * (2 + 2 * rank), {})

        _together(work, 2)
        assert seen[0] == seen[1] == [0.0, -3.0, -6.0, -9.0, -12.0]  # the mean of 2 and 4, at every step


def test_under_ps_sync_a_worker_that_touched_nothing_does_not_hold_the_others_up_by_silence(tmp_path: Path) -> None:
    nothing = torch.empty(0, dtype=torch.int64)
    with serving(tmp_path, "ps-sync", workers=2) as world:
        tables = [remote(world, rank) for rank in range(2)]

        def work(rank: int) -> None:
            rows = torch.tensor([4]) if rank == 0 else nothing
            tables[rank].pull(rows, training=True)
            tables[rank].push(rows, ones(len(rows)) * 2, {})

        _together(work, 2)
        assert torch.equal(tables[0].pull(torch.tensor([4]), training=False), -ones(1))


def test_a_worker_that_leaves_is_not_waited_for(tmp_path: Path) -> None:
    with serving(tmp_path, "ps-sync", workers=2) as world:
        first, second = remote(world, 0), remote(world, 1)
        pushing = threading.Thread(target=first.push, args=(torch.tensor([1]), ones(1), {}), daemon=True)
        first.pull(torch.tensor([1]), training=True)
        pushing.start()
        second.close()
        pushing.join(30)
        assert not pushing.is_alive()


def test_a_server_that_comes_back_has_its_rows_and_takes_no_push_twice(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        table = remote(world)
        table.pull(torch.tensor([1]), training=True)
        table.push(torch.tensor([1]), ones(1), {})
    with serving(tmp_path) as world:
        again = remote(world)
        assert again._seq == 1
        assert torch.equal(again.pull(torch.tensor([1]), training=False), -ones(1))
        again._seq = 0
        again.push(torch.tensor([1]), ones(1), {})  # the answer to it was lost: it is sent once more
        assert torch.equal(again.pull(torch.tensor([1]), training=False), -ones(1))


def test_a_wait_for_a_table_names_who_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_client, "NOTICE", 0.01)
    with serving(tmp_path, "ps-sync") as world:
        first, second = remote(world), remote(world, 1)
        pushing = threading.Thread(target=first.push, args=(torch.tensor([1]), ones(1), {}), daemon=True)
        pushing.start()
        until = time.monotonic() + 30
        while not first._seeing.waiting.endswith("step 1: worker-1") and time.monotonic() < until:
            time.sleep(0.01)
        assert first._seeing.waiting == "table 't', step 1: worker-1"
        second.push(torch.tensor([1]), ones(1), {})
        pushing.join(30)
        assert not pushing.is_alive()


def test_saved_by_three_servers_and_read_by_two(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    rows = torch.arange(40)
    with serving(tmp_path / "a", servers=3) as world:
        table = remote(world)
        table.pull(rows, training=True)
        table.push(rows, ones(40) * rows[:, None], {})
        assert len(table.save(folder)) == 3
    with serving(tmp_path / "b", servers=2) as world:
        first, second = remote(world), remote(world, 1)
        waiting = threading.Thread(target=second.load, args=(folder,), daemon=True)
        waiting.start()  # reads nothing before the first has loaded
        first.load(folder)
        waiting.join(30)
        assert not waiting.is_alive()
        assert torch.equal(second.pull(rows, training=False), -ones(40) * rows[:, None])
    alone = Local(INFO)
    alone.load(folder)
    assert torch.equal(alone.pull(rows, training=False), -ones(40) * rows[:, None])
    alone.close()


def test_a_checkpoint_is_never_loaded_over_rows_that_were_trained_since(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    with serving(tmp_path) as world:
        table = remote(world)
        table.pull(torch.tensor([1]), training=True)
        table.save(folder)
        table.push(torch.tensor([1]), ones(1), {})
        remote(world).load(folder)  # the first worker came back into a job that runs
        assert torch.equal(table.pull(torch.tensor([1]), training=False), -ones(1))


def test_workers_that_never_come_are_not_waited_for_once_they_are_known_to_be_lost(tmp_path: Path) -> None:
    service = TableService(tmp_path, 0, 1, parse("ps-sync"), 3)
    with Host(SECRET, {SERVICE: service}) as host:
        peers = (Peer("server-0", 0, "here", host.host, host.port),)
        world = World(size=3, source="shoal", servers=peers, secret=SECRET)
        table, other = remote(world, 0), remote(world, 1)
        table.pull(torch.tensor([1]), training=True)
        pushing = threading.Thread(target=table.push, args=(torch.tensor([1]), ones(1), {}), daemon=True)
        pushing.start()
        service.lost(frozenset({2}))
        other.push(torch.tensor([2]), ones(1), {})
        pushing.join(30)
        assert not pushing.is_alive()


def test_after_a_restart_those_who_did_not_call_again_are_given_up(tmp_path: Path) -> None:
    service = TableService(tmp_path, 0, 1, parse("ps-ssp:staleness=1"), 3)
    with Host(SECRET, {SERVICE: service}) as host:
        peers = (Peer("server-0", 0, "here", host.host, host.port),)
        table = remote(World(size=3, source="shoal", servers=peers, secret=SECRET))
        service.give_up_on_absent()
        for _ in range(4):  # three steps ahead of workers that are gone
            table.push(torch.tensor([1]), ones(1), {})


def test_a_table_that_shared_memory_could_not_hold_goes_to_disk(tmp_path: Path) -> None:
    spill = tmp_path / "disk"
    service = TableService(tmp_path, 0, 1, parse("ps-async"), 1, spill)
    assert service._home(INFO) == tmp_path / "table-t-s0"
    assert service._home(replace(INFO, rows=1 << 27, dim=1 << 16)) == spill / "table-t-s0"


def test_the_staleness_scale_shrinks_the_change_and_not_the_gradient(tmp_path: Path) -> None:
    from shoal.train.ps.rows import Rows

    rows, info = torch.tensor([3]), replace(INFO, optimizer="adagrad", hyper={"lr": 1.0})
    whole, half = (Rows(tmp_path / name, info, 0, 1) for name in ("whole", "half"))
    for table, scale in ((whole, 1.0), (half, 0.5)):
        table.read(rows)
        table.update(rows, ones(1) * 4, {0: 1}, {}, scale=scale)
    torch.testing.assert_close(half.read(rows), whole.read(rows) / 2)


def test_another_table_of_the_same_name_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path) as world:
        remote(world)
        with pytest.raises(Disagreement, match="dim=8 here and 4"):
            remote(world, 1, replace(INFO, dim=8))


def test_a_stranger_without_the_secret_reads_no_row(tmp_path: Path) -> None:
    from shoal.errors import NotAllowed

    with serving(tmp_path) as world, pytest.raises((NotAllowed, PeerLost)):
        remote(replace(world, secret=b"a guess"))


# -- in a model --------------------------------------------------------------------------------------------------------


def setting(world: World | None = None) -> Setting:
    return Setting(world or World(), {}, group=_no_group, seeing=Seeing())


def _no_group() -> Any:
    raise AssertionError("a table needs no group")


class Model(nn.Module):
    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table
        self.head = nn.Linear(4, 1, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(ids).sum(1))


def _train(model: Model, optimizer: torch.optim.Optimizer) -> None:
    for step in range(8):
        ids = torch.randint(0, 30, (6, 3), generator=torch.Generator().manual_seed(step))
        loss = (model(ids) - ids.float().mean(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_in_a_world_of_one_it_trains_as_torchs_own_embedding() -> None:
    torch.manual_seed(0)
    mine = Model(Embedding(30, 4, std=0.5))
    optimizer = torch.optim.SGD(mine.parameters(), lr=0.05)
    tables = Tables(mine, [optimizer], setting())
    plain = Model(nn.Embedding(30, 4))
    with torch.no_grad():
        plain.table.weight.copy_(mine.table.table().pull(torch.arange(30), training=True))  # type: ignore[operator, union-attr]
        plain.head.weight.copy_(mine.head.weight)
    _train(mine, optimizer)
    _train(plain, torch.optim.SGD(plain.parameters(), lr=0.05))
    found = mine.table.table().pull(torch.arange(30), training=False)  # type: ignore[operator]
    torch.testing.assert_close(found, plain.table.weight.detach())  # type: ignore[arg-type]
    torch.testing.assert_close(mine.head.weight, plain.head.weight)
    assert "table" not in " ".join(mine.state_dict())
    tables.close()


def test_it_follows_the_schedulers_learning_rate(tmp_path: Path) -> None:
    model = Model(Embedding(30, 4, std=0.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with serving(tmp_path, workers=1) as world:
        tables = Tables(model, [optimizer], setting(world))
        nn.init.ones_(model.head.weight)
        for lr in (1.0, 0.25):
            optimizer.param_groups[0]["lr"] = lr
            optimizer.zero_grad()
            model.table(torch.tensor([7])).sum().backward()
            optimizer.step()
        found = model.table.table().pull(torch.tensor([7]), training=False)  # type: ignore[operator]
        assert torch.equal(found, -torch.full((1, 4), 1.25))
        tables.close()


def test_an_embedding_used_twice_in_a_step_sends_the_sum() -> None:
    table = Embedding(10, 2, std=0.0, lr=1.0)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    table.connect("t", optimizer, setting())
    (table(torch.tensor([1, 2])).sum() + 3 * table(torch.tensor([2, 5])).sum()).backward()
    table.send(optimizer)
    found = table.table().pull(torch.tensor([1, 2, 5]), training=False)
    assert found[:, 0].tolist() == [-1.0, -4.0, -3.0]


@pytest.mark.parametrize("policy", ["skip", "stop"])
def test_rows_whose_gradient_is_no_number_meet_the_policy(policy: str) -> None:
    table = Embedding(10, 2, std=0.0, lr=1.0)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    table.connect("t", optimizer, replace(setting(), options={"nan": policy}))
    (table(torch.tensor([1, 2])) * torch.tensor([[1.0], [math.nan]])).sum().backward()
    if policy == "stop":
        with pytest.raises(NotFinite, match="1 rows of Embedding"):
            table.send(optimizer)
        return
    table.send(optimizer)
    assert table.table().pull(torch.tensor([1, 2]), training=False)[:, 0].tolist() == [-1.0, 0.0]


def test_evaluation_neither_keeps_rows_nor_waits_for_gradients() -> None:
    table = Embedding(10, 2)
    table.connect("t", torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5), setting())
    table.eval()
    table(torch.tensor([1]))
    with torch.no_grad():
        table.train()(torch.tensor([1]))
    assert table.table().facts()["rows"] == 0 and not table._pending


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Embedding(0, 4), "rows=0"),
        (lambda: Embedding(5, 4, admit=0), "admit=0"),
        (lambda: Embedding(5, 4)(torch.tensor([5])), "row 5 is not in a table of 5 rows"),
        (lambda: Embedding(5, 4)(torch.tensor([0.5])), "ids are whole numbers"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, told: str) -> None:
    with pytest.raises(BadModel, match=told):
        make()


def test_several_workers_without_servers_are_refused() -> None:
    with pytest.raises(BadModel, match="this strategy has none"):
        Embedding(5, 4).connect("t", torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1), setting(World(size=2)))


def _together(work: Any, count: int) -> None:
    failed: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            work(rank)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed, failed
    assert not any(thread.is_alive() for thread in threads)
