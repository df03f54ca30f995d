"""A script of joblib as a job: its workers come back when they are killed, and the job ends with its chief."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.live import Live, live_server
from tests.support.shell import typed

pytestmark = [pytest.mark.real]

GRID = """
import os, signal, sys
from pathlib import Path
from joblib import Parallel, delayed
from beside import square

def work(number):
    mark = Path(f"died-{number}")
    if number == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return square(number)

if __name__ == "__main__":
    print(sys.argv[1:], Parallel(n_jobs=-1, batch_size=1)(delayed(work)(number) for number in range(12)))
    sys.exit(int(sys.argv[1]))
"""


def run(live: Live, folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    flags = ("--framework", "sklearn", "--workers", "2", "--folder", ".", "--retries", "0")
    return typed(live, folder, "run", "src/grid.py", *flags, "--", code)


def test_a_killed_worker_costs_a_job_nothing_but_time_and_the_scripts_end_is_the_jobs(tmp_path: Path) -> None:
    folder = tmp_path / "folder" / "src"
    folder.mkdir(parents=True)
    (folder / "grid.py").write_text(GRID)
    (folder / "beside.py").write_text("def square(number): return number * number\n")
    with live_server(tmp_path / "home") as live:
        done = run(live, folder.parent, "0")
        assert done.returncode == 0, done.stdout
        assert f"chief-0 | ['0'] {[number**2 for number in range(12)]}" in done.stdout
        assert run(live, folder.parent, "7").returncode == 7
