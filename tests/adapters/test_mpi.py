"""Real MPI programs as jobs, on a machine that presents itself as two nodes."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.support.interpreters import interpreter
from tests.support.live import Live, eventually, live_server, processes_of
from tests.support.shell import typed

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

SUM = """
import os, sys
from mpi4py import MPI

world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
nodes = sorted(set(world.allgather(os.environ["SHOAL_NODE"])))
print(f"rank {world.rank} of {world.size} is {os.environ['SHOAL_MEMBER']}: {total} on {len(nodes)} nodes", sys.argv[1:])
"""

END = """
import os, signal, sys, time
from mpi4py import MPI

world, how = MPI.COMM_WORLD, sys.argv[1]
world.barrier()
if world.rank == 1 and how == "exit":
    os._exit(3)
if world.rank == 1 and how == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if world.rank == 1 and how == "abort":
    world.Abort(5)
time.sleep(100)
"""

STOP = """
import os, signal, sys, time
from mpi4py import MPI

def save(*_):
    time.sleep(0.3 * (1 + MPI.COMM_WORLD.rank))
    print(f"rank {MPI.COMM_WORLD.rank} has saved", flush=True)
    os._exit(0)

signal.signal(signal.SIGTERM, save)
MPI.COMM_WORLD.barrier()
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live_server(tmp_path_factory.mktemp("mpi"), "--nodes", "2", "--cpus", "4") as started:
        yield started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    for name, text in (("sum", SUM), ("end", END), ("stop", STOP)):
        (made / f"{name}.py").write_text(text)
    return made


def run(live: Live, folder: Path, *words: str, workers: int = 2) -> CompletedProcess[str]:
    script, *rest = words
    flags = ("--framework", "mpi", "--workers", str(workers), "--cpu", "2", "--retries", "0")
    python = interpreter("mpi4py==4.1.2")
    return typed(live, folder, "run", script, *flags, "--environment", python, "--folder", ".", *rest)


@pytest.mark.parametrize("workers", [1, 4])
def test_ranks_reduce_together_and_each_is_the_worker_of_its_number(live: Live, folder: Path, workers: int) -> None:
    done = run(live, folder, "sum.py", "--", "--lr", "0.1", workers=workers)
    assert done.returncode == 0, done.stdout
    nodes, total = min(2, workers), sum(range(workers + 1))
    for rank in range(workers):
        line = f"rank {rank} of {workers} is worker-{rank}: {total} on {nodes} nodes ['--lr', '0.1']"
        assert f"worker-{rank} | {line}" in done.stdout


def test_any_program_is_run_so_not_only_a_script(live: Live, folder: Path) -> None:
    python = interpreter("mpi4py==4.1.2")
    flags = ("--framework", "mpi", "--workers", "2", "--folder", ".")
    done = typed(live, folder, "run", *flags, "--", python, "sum.py")
    assert done.returncode == 0, done.stdout
    assert "rank 1 of 2 is worker-1: 3" in done.stdout


@pytest.mark.parametrize(("how", "code", "said"), [("exit", 3, "exited with 3"), ("kill", 137, "signal 9")])
def test_a_rank_that_ends_badly_ends_the_job_at_once(live: Live, folder: Path, how: str, code: int, said: str) -> None:
    done = run(live, folder, "end.py", "--", how, workers=4)
    assert done.returncode == code, done.stdout
    assert re.search(f"failed after .*worker-1 .*{said}", done.stdout)
    eventually(lambda: not processes_of(live.home), 20, "the end of all processes")


def test_an_abort_ends_every_rank(live: Live, folder: Path) -> None:
    done = run(live, folder, "end.py", "--", "abort")
    assert done.returncode != 0 and "failed after" in done.stdout
    eventually(lambda: not processes_of(live.home), 20, "the end of all processes")


def test_a_stop_gives_every_rank_its_grace(live: Live, folder: Path) -> None:
    done: list[CompletedProcess[str]] = []
    thread = threading.Thread(target=lambda: done.append(run(live, folder, "stop.py", "--name", "graceful")))
    thread.start()

    def ready() -> bool:
        said = typed(live, folder, "logs", "graceful")
        return said.stdout.count("ready") == 2

    eventually(ready)
    assert typed(live, folder, "stop", "graceful").returncode == 0
    thread.join()
    assert all(f"worker-{rank} | rank {rank} has saved" in done[0].stdout for rank in range(2)), done[0].stdout


def test_without_an_mpi_the_job_says_what_to_install(live: Live, folder: Path) -> None:
    done = run(live, folder, "sum.py", "--env", "PATH=/nowhere")
    assert done.returncode == 127
    assert "no mpirun on PATH (/nowhere)" in done.stdout and "openmpi-bin" in done.stdout


def test_another_mpi_is_refused_by_name(live: Live, folder: Path) -> None:
    other = folder / "bin" / "mpirun"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho HYDRA build details:\n")
    other.chmod(0o755)
    done = run(live, folder, "sum.py", "--env", f"PATH={other.parent}:/usr/bin:/bin")
    assert done.returncode == 127
    assert "is not Open MPI (HYDRA build details:)" in done.stdout
