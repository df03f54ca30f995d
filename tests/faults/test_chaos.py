"""Random kills of servers, shepherds, ranks and their children, from a seed; the promises are checked after each."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from shoal.client.jobs import Job
from tests.support.live import Live, eventually, live_server, processes_of, signal_process

CPUS = 4
KILLS, SOAK_KILLS = 60, 1000

# A rank leaves a mark per start, so that a second start would show; then it works, with a child.
WORK = """
import os, subprocess, sys, time
mark = "-".join(os.environ[name] for name in ("SHOAL_GANG", "SHOAL_MEMBER"))
with open(os.path.join(os.environ["MARKS"], mark), "a") as file:
    file.write(str(os.getpid()) + "\\n")
child = subprocess.Popen(["sleep", "300"])
for tick in range(int(float(sys.argv[1]) * 10)):
    print("tick", tick, flush=True)
    time.sleep(0.1)
child.kill()
sys.exit(int(sys.argv[2]))
"""


@dataclass
class Chaos:
    """One seeded run: what was submitted, and what must hold."""

    live: Live
    marks: Path
    rng: random.Random
    jobs: dict[str, Job] = field(default_factory=dict)
    killed: Counter[str] = field(default_factory=Counter)

    def submit(self) -> None:
        seconds = self.rng.choice(["0.3", "1", "3", "30"])
        code = self.rng.choice(["0", "0", "0", "4"])
        job = self.live.submit(
            [sys.executable, "-c", WORK, seconds, code],
            workers=self.rng.choice([1, 2, 2, 3]),
            resources={"cpu": self.rng.choice([0.1, 0.25, 0.5])},
            env={"MARKS": str(self.marks)},
            retries=self.rng.choice([0, 1, 3]),
            grace=self.rng.choice([0, 0.5, 2]),
            max_duration=20,
        )
        self.jobs[job.id] = job

    def kill_something(self) -> None:
        """One kill; the server's is followed by its restart, as an administrator's tool would do."""
        what = self.rng.choices(["server", "shepherd", "rank", "child", "stop"], [2, 3, 4, 3, 1])[0]
        if what == "server":
            self.live.kill()
            self.live.start()
        elif what == "stop":
            self.rng.choice(list(self.jobs.values())).stop()
        else:
            victims = [process for process in processes_of(self.live.home) if kind(process) == what]
            if not victims:
                return
            signal_process(self.rng.choice(victims), signal.SIGKILL)
        self.killed[what] += 1

    def check(self) -> None:
        listed = {job["id"]: job for job in self.all_jobs()}
        assert listed.keys() == self.jobs.keys(), "no job lost, none doubled"
        holding = [job for job in listed.values() if job["state"] in ("starting", "running", "stopping")]
        asked = sum(self.asked(job["id"]) for job in holding)
        assert asked <= CPUS + 1e-9, f"over-committed: {asked} CPUs"
        for job in listed.values():
            if job["state"] in ("succeeded", "failed", "stopped"):
                assert job["reason"], job
        for mark in self.marks.iterdir():
            assert len(mark.read_text().split()) <= 1, f"{mark.name} was started twice"

    def asked(self, job: str) -> float:
        spec = self.jobs[job].spec
        return float(spec["resources"]["cpu"]) * int(spec.get("workers", 1))

    def all_jobs(self) -> list[dict[str, object]]:
        found, cursor = [], None
        while True:
            page = self.live.api.request("GET", "/jobs", params={"limit": 500, "cursor": cursor})
            found += page["jobs"]
            cursor = page["next"]
            if cursor is None:
                return found

    def no_partial_gang(self) -> None:
        """A running job's ranks have all been started, within the time that takes."""
        for job in self.jobs.values():
            if job.refresh().state == "running":
                eventually(lambda job=job: self.whole(job), 30, f"{job.id} being whole")

    @staticmethod
    def whole(job: Job) -> bool:
        return job.refresh().state != "running" or all(rank["pid"] for rank in job.ranks)

    def settle(self) -> None:
        """Everything ends by itself or by its limit, and nothing is left of it."""
        for job in self.jobs.values():
            self.live.wait_state(job, "succeeded", "failed", "stopped", seconds=240)
        self.check()
        eventually(lambda: not processes_of(self.live.home), 60, "the end of all processes")
        eventually(lambda: not list(self.live.home.gangs.iterdir()), 90, "the end of all gang folders")
        for job in self.jobs.values():
            if job.attempt == 0:
                continue  # stopped while it waited
            lines = [line.text for line in job.logs(rank="worker-0", attempt=job.attempt)]
            whole = [f"tick {n}" for n in range(len(lines))]
            assert lines[:-1] == whole[:-1], "no line lost in the middle, none doubled"
            assert "".join(whole[-1:]).startswith("".join(lines[-1:])), "a rank may be killed in the middle of a line"


def kind(process: psutil.Process) -> str:
    try:
        command = process.cmdline()
    except psutil.Error:
        return "gone"
    if any(part.endswith(".pyz") for part in command):
        return "shepherd"
    return "child" if command[:1] == ["sleep"] else "rank"


def rampage(tmp_path: Path, kills: int, seed: int) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    with live_server(tmp_path / "home", "--cpus", str(CPUS), "--nodes", "1") as live:
        chaos = Chaos(live, marks, random.Random(seed))
        for number in range(kills):
            while sum(not job.ended for job in chaos.jobs.values()) < 8:
                chaos.submit()
            time.sleep(chaos.rng.uniform(0, 0.6))  # the kill falls anywhere in the life of what it hits
            chaos.kill_something()
            chaos.check()
            if number % 10 == 9:
                chaos.no_partial_gang()
                for job in chaos.jobs.values():
                    job.refresh()
        chaos.settle()
        print(f"seed {seed}: {dict(chaos.killed)}, {len(chaos.jobs)} jobs", file=sys.stderr)
        assert {"server", "shepherd", "rank", "child"} <= chaos.killed.keys()


@pytest.mark.real
@pytest.mark.chaos
@pytest.mark.timeout(900)
def test_sixty_random_kills_break_no_promise(tmp_path: Path) -> None:
    rampage(tmp_path, KILLS, seed=int(os.environ.get("SHOAL_CHAOS_SEED", "7")))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_thousand_random_kills_break_no_promise(tmp_path: Path) -> None:
    rampage(tmp_path, SOAK_KILLS, seed=int(os.environ.get("SHOAL_CHAOS_SEED", "11")))
