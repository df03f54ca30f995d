"""XGBoost and LightGBM gangs that lose somebody, or wait for somebody who never comes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from shoal.client.draft import draft
from shoal.client.jobs import Job
from tests.support.interpreters import boosting
from tests.support.live import Live, eventually, processes_of

__all__ = ["boosting"]

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

XGBOOST = """
import os, sys, time
import numpy, xgboost
if os.environ["SHOAL_RANK"] == "1" and "late" in sys.argv:
    time.sleep(600)
print("joins", flush=True)
with xgboost.collective.CommunicatorContext():
    print("attempt", os.environ["SHOAL_ATTEMPT"], "rank", xgboost.collective.get_rank(), flush=True)
    rows = numpy.random.default_rng(xgboost.collective.get_rank()).random((500, 5))
    rounds = 1_000_000 if os.environ["SHOAL_ATTEMPT"] == "1" else 2
    xgboost.train({}, xgboost.DMatrix(rows, rows[:, 0]), rounds)
"""
LIGHTGBM = """
import os, sys, time
import lightgbm, numpy, shoal.lightgbm
if os.environ["SHOAL_RANK"] == "1" and "late" in sys.argv:
    time.sleep(600)
print("joins", flush=True)
rows = numpy.random.default_rng(int(os.environ["SHOAL_RANK"])).random((500, 5))
rounds = 1_000_000 if os.environ["SHOAL_ATTEMPT"] == "1" else 2
def told(env):
    if not env.iteration:
        print("attempt", os.environ["SHOAL_ATTEMPT"], flush=True)
params = {"verbosity": -1, **shoal.lightgbm.params()}
lightgbm.train(params, lightgbm.Dataset(rows, rows[:, 0]), rounds, callbacks=[told])
"""
SCRIPTS = {"xgboost": XGBOOST, "lightgbm": LIGHTGBM}


def start(live: Live, python: str, folder: Path, framework: str, *args: str, **keys: Any) -> Job:
    script = folder / "code" / "train.py"
    script.parent.mkdir()
    script.write_text(SCRIPTS[framework])
    raw = {"framework": framework, "script": str(script), "args": list(args), "environment": python, "workers": 2}
    return Job(live.api, draft({**raw, "resources": {"cpu": 0.5}, **keys}).send(live.api))


def said(live: Live, job: Job, rank: str, what: str) -> None:
    eventually(lambda: any(line.startswith(what) for line in live.lines(job, rank)), 90, f"{what!r} from {rank}")


@pytest.mark.parametrize(
    ("framework", "victim"),
    [("xgboost", "worker-0"), ("xgboost", "worker-1"), ("xgboost", "tracker-0"), ("lightgbm", "worker-1")],
)
def test_whoever_is_killed_is_named_and_the_job_is_tried_again_with_fresh_ports(
    live: Live, boosting: str, tmp_path: Path, framework: str, victim: str
) -> None:
    job = start(live, boosting, tmp_path, framework, retries=1)
    for rank in ("worker-0", "worker-1"):
        said(live, job, rank, "attempt 1")
    os.kill(next(rank["pid"] for rank in job.refresh().ranks if rank["name"] == victim), signal.SIGKILL)
    live.wait_state(job, "succeeded", "failed", seconds=120)
    events = [str(event["message"]) for event in job.events()]
    assert any(f"{victim} on local was killed by signal 9" in message for message in events), events
    assert (job.state, job.attempt) == ("succeeded", 2), job.message


@pytest.mark.parametrize("framework", ["xgboost", "lightgbm"])
def test_a_worker_that_waits_for_a_peer_inside_the_library_is_ended_after_the_grace(
    live: Live, boosting: str, tmp_path: Path, framework: str
) -> None:
    job = start(live, boosting, tmp_path, framework, "late", grace=1)
    said(live, job, "worker-0", "joins")
    job.stop()
    live.wait_state(job, "stopped", seconds=30)
    eventually(lambda: not processes_of(live.home), 30, "the end of all processes")
