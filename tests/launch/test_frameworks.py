"""The launchers of frameworks with variables of their own: the whole of what each process gets, as golden files."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from shoal.contract import Process
from shoal.job.spec import parse
from shoal.launch import Launcher, launcher
from shoal.launch.conformance import LauncherContract, render

from .golden import check


class TestTensorFlow(LauncherContract):
    @pytest.fixture
    def launcher(self) -> Launcher:
        return launcher("tensorflow")


class TestTensorFlowWithServers(TestTensorFlow):
    strategy = "ps-async"


class TestMXNet(LauncherContract):
    @pytest.fixture
    def launcher(self) -> Launcher:
        return launcher("mxnet")


class TestJax(LauncherContract):
    @pytest.fixture
    def launcher(self) -> Launcher:
        return launcher("jax")


class TestPaddle(LauncherContract):
    @pytest.fixture
    def launcher(self) -> Launcher:
        return launcher("paddle")


class TestPaddleWithServers(TestPaddle):
    strategy = "ps-sync"


def rendered(framework: str, **keys: Any) -> Mapping[str, Process]:
    spec = parse({"framework": framework, "script": "train.py", "args": ["--epochs", "5"], "workers": 2, **keys})
    return render(launcher(framework), spec)


@pytest.mark.parametrize(
    ("golden", "framework", "keys"),
    [
        ("tensorflow", "tensorflow", {"roles": {"chief": {}, "evaluator": {}}}),
        ("tensorflow-allreduce", "tensorflow", {"strategy": "allreduce"}),
        ("tensorflow-ps-async", "tensorflow", {"strategy": "ps-async", "servers": 2}),
        ("tensorflow-ps-sync", "tensorflow", {"strategy": "ps-sync"}),
        ("mxnet", "mxnet", {"servers": 2}),
        ("jax", "jax", {"resources": {"gpu": 2}}),
        ("paddle", "paddle", {"resources": {"gpu": 2}}),
        ("paddle-ps-async", "paddle", {"strategy": "ps-async", "servers": 2}),
    ],
)
def test_a_gang_on_two_nodes_is_as_in_the_golden_file(golden: str, framework: str, keys: dict[str, Any]) -> None:
    check(golden, rendered(framework, **keys))


def config(process: Process) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(process.env["TF_CONFIG"])
    return found


def test_tensorflow_calls_servers_ps_and_leaves_the_evaluator_out_of_the_cluster() -> None:
    processes = rendered("tensorflow", servers=1, roles={"evaluator": {}})
    assert {name: len(who) for name, who in config(processes["server-0"])["cluster"].items()} == {"worker": 2, "ps": 1}
    assert config(processes["server-0"])["task"] == {"type": "ps", "index": 0}
    assert config(processes["evaluator-0"])["task"] == {"type": "evaluator", "index": 0}


def test_hands_off_runs_the_script_in_every_role_of_tensorflow() -> None:
    processes = rendered("tensorflow", servers=1, roles={"chief": {}})
    assert {tuple(process.argv[1:]) for process in processes.values()} == {("train.py", "--epochs", "5")}


def test_in_a_tensorflow_ps_job_the_script_is_the_chiefs() -> None:
    processes = rendered("tensorflow", strategy="ps-async")
    assert processes["chief-0"].argv[1:] == ["train.py", "--epochs", "5"]
    for name in ("worker-0", "worker-1", "server-0"):
        assert processes[name].argv[1:] == ["-m", "shoal.adapters.tensorflow", "train.py", "--epochs", "5"]


def test_a_role_of_shoals_own_may_be_given_a_command() -> None:
    processes = rendered("mxnet", roles={"server": {"command": ["python3", "server.py"]}})
    assert processes["server-0"].argv == ["python3", "server.py"]


def test_a_script_learns_its_cluster_from_flags_too() -> None:
    flags = ["--job={role}", "--task={index}", "--ps={ps_hosts}", "--workers={worker_hosts}"]
    processes = rendered("tensorflow", strategy="ps-sync", args=flags)
    assert "--job=ps" in processes["server-0"].argv
    worker = processes["worker-1"]
    cluster = config(worker)["cluster"]
    assert worker.argv[2:] == [
        "--job=worker", "--task=1", f"--ps={','.join(cluster['ps'])}", f"--workers={','.join(cluster['worker'])}",
    ]  # fmt: skip
