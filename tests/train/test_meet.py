"""Workers that torchrun started find each other, and leave nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from shoal.errors import BadSpec
from shoal.train import meet as meeting
from shoal.train.meet import Meeting, machine, meet
from shoal.train.world import World
from tests.train.support import torchrun


def test_a_world_of_one_and_a_job_have_nobody_to_meet() -> None:
    for world in (World(), World(source="torchrun"), World(source="shoal", size=2)):
        found, made = meet(world, needs_servers=False, servers=1)
        assert found is world
        made.close()
        made.close()


def test_no_servers_for_a_strategy_that_needs_them_is_refused() -> None:
    with pytest.raises(BadSpec, match=r"needs parameter servers: start\(servers=0\) must be 1 or more"):
        meet(World(source="torchrun", size=2, strategy="ps-sync"), needs_servers=True, servers=0)


def test_a_machine_is_itself() -> None:
    assert machine() == machine()


def test_folders_of_runs_that_were_killed_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_SHM", tmp_path)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait(60)
    old, alive, young = (tmp_path / f"shoal-torchrun-{name}" for name in ("old", "alive", "young"))
    for folder, pid in ((old, dead.pid), (alive, os.getpid()), (young, dead.pid)):
        folder.mkdir()
        (folder / f"pid-{pid}").touch()
    for folder in (old, alive):
        os.utime(folder, (time.time() - 1000,) * 2)
    meeting._sweep()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["shoal-torchrun-alive", "shoal-torchrun-young"]


def child(code: str = "import time; time.sleep(600)") -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code], start_new_session=True)


def test_servers_that_no_worker_came_to_end_when_all_have_left() -> None:
    store, servers = HashStore(), [child(), child()]
    made = Meeting(list(servers), None, store, 0, (os.getpid(), os.getpid(), None))
    for rank in (1, 2):
        assert made._missing() == [1, 2][rank - 1 :]
        Meeting(store=store, rank=rank).close(ok=rank == 1)
    made.close()
    assert all(server.poll() is not None for server in servers)


def test_a_worker_that_died_without_a_word_is_not_waited_for() -> None:
    dead, server = child(""), child()
    dead.wait(60)
    Meeting([server], None, HashStore(), 0, (os.getpid(), dead.pid)).close()
    assert server.poll() is not None


@pytest.mark.parametrize("linger", [0.0, 1000.0])
def test_servers_stay_for_slower_workers_but_not_for_ever(linger: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "LINGER", linger)
    seen_all, other = child("" if linger else "import time; time.sleep(600)"), child()
    Meeting([seen_all, other], None, HashStore(), 0, (os.getpid(), os.getpid())).close()
    assert other.poll() is not None and seen_all.poll() is not None


def told(result: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert result.returncode == 0, result.stdout + result.stderr
    # Two ranks print into one pipe: their lines may come without a break between them.
    lines = result.stdout.replace('}{"rank"', '}\n{"rank"').splitlines()
    return sorted((json.loads(line) for line in lines if line[:1] == "{"), key=lambda one: one["rank"])


FIT = """
    import json, torch
    from torch import nn
    from shoal import train

    with train.start({strategy!r}, servers={servers}) as run:
        torch.manual_seed(run.rank)
        model = nn.Linear(2, 1, bias=False)
        model, optimizer = run.wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
        x = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        for _ in range(200):
            run.step(model, nn.functional.mse_loss, x, torch.tensor([[2.0], [-3.0]]))
        world = run.world
        said = dict(rank=run.rank, size=run.size, w=model.state_dict()["weight"].tolist()[0],
                    servers=len(world.servers), shared=str(world.shared), secret=world.secret.decode()[:8])
        print(json.dumps(said), flush=True)
"""


@pytest.mark.real
@pytest.mark.parametrize(("strategy", "servers"), [("allreduce", 0), ("ps-async", 2)])
def test_a_script_under_torchrun_trains_and_leaves_nothing_behind(strategy: str, servers: int, tmp_path: Path) -> None:
    # Two parameters for two servers: one of them gets nothing, and no worker ever comes to it.
    first, second = told(torchrun(FIT.format(strategy=strategy, servers=servers or 1), tmp_path))
    assert (first["size"], first["servers"], second["servers"]) == (2, servers, servers)
    assert first["secret"] == second["secret"] and first["shared"] == second["shared"]
    assert first["w"] == pytest.approx([2, -3], abs=0.05) and second["w"] == pytest.approx([2, -3], abs=0.05)
    assert not Path(first["shared"]).exists()


@pytest.mark.real
def test_torchrun_with_one_worker_is_a_world_of_one(tmp_path: Path) -> None:
    [only] = told(torchrun(FIT.format(strategy="ps-sync", servers=1), tmp_path, workers=1))
    assert (only["size"], only["servers"], only["shared"]) == (1, 0, "None")
