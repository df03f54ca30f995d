"""A TensorFlow job with parameter servers that loses somebody: the rules of its roles, with the real TensorFlow."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from shoal.client.draft import draft
from shoal.client.jobs import Job
from tests.support.interpreters import preset
from tests.support.live import Live, eventually, processes_of

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

CHIEF = """
import json, os, pathlib, time
role = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
if role == "evaluator":
    print("evaluates", flush=True)
    time.sleep(600)
import tensorflow as tf
tf.get_logger().setLevel("INFO")
strategy = tf.distribute.ParameterServerStrategy(tf.distribute.cluster_resolver.TFConfigClusterResolver())
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    count = tf.Variable(0)

@tf.function
def step():
    count.assign_add(1)

for number in range(100_000):
    coordinator.schedule(step)
    coordinator.join()
    if number == 20:
        print("under way", flush=True)
    if os.path.exists("enough") and number > 40:
        break
print("counted", int(count.read_value()) >= number, flush=True)
"""


def start(live: Live, folder: Path) -> Job:
    script = folder / "code" / "train.py"
    script.parent.mkdir()
    script.write_text(CHIEF)
    raw = {"framework": "tensorflow", "strategy": "ps-async", "script": str(script), "workers": 2, "servers": 1}
    keys = {"roles": {"evaluator": {}}, "environment": preset("tensorflow-2.21"), "retries": 0, "grace": 2}
    job = Job(live.api, draft({**raw, **keys}).send(live.api))
    eventually(lambda: "under way" in live.lines(job, "chief-0"), 120, "steps of the workers")
    return job


def kill(job: Job, name: str) -> None:
    os.kill(next(rank["pid"] for rank in job.refresh().ranks if rank["name"] == name), signal.SIGKILL)


def test_a_lost_worker_is_started_again_a_lost_evaluator_is_not_and_the_chief_ends_the_job(
    live: Live, tmp_path: Path
) -> None:
    job = start(live, tmp_path)
    kill(job, "worker-0")
    kill(job, "evaluator-0")
    eventually(lambda: len(_events(job, "worker-0 ended and is started again")) == 1, 60, "the worker's return")
    eventually(lambda: len(_events(job, "evaluator-0 on ")) == 1, 60, "the evaluator's end being noted")
    # TensorFlow 2.21 hangs at its exit while it still looks for a worker.
    eventually(lambda: any("has been recovered" in line for line in live.lines(job, "chief-0")), 90, "its recovery")
    (live.home.work / job.id / "enough").touch()
    live.wait_state(job, "succeeded", "failed", seconds=120)
    assert (job.state, job.attempt) == ("succeeded", 1), job.message
    assert "counted True" in live.lines(job, "chief-0")
    eventually(lambda: not processes_of(live.home), 30, "the end of servers and workers")


def test_a_lost_parameter_server_ends_the_attempt_and_is_named(live: Live, tmp_path: Path) -> None:
    job = start(live, tmp_path)
    kill(job, "server-0")
    live.wait_state(job, "failed", seconds=60)
    assert "server-0 on local was killed by signal 9" in str(job.message)


def _events(job: Job, said: str) -> list[str]:
    return [str(event["message"]) for event in job.events() if said in str(event["message"])]
