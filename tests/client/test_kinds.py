from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.client.http import Api
from shoal.errors import BadSpec
from shoal.frameworks import FRAMEWORKS
from tests.client.fake import Answer, Chunkery, FakeServer

CLASSES: list[Any] = [
    shoal.TorchJob, shoal.TensorFlowJob, shoal.XGBoostJob, shoal.LightGBMJob, shoal.MXNetJob,
    shoal.PaddleJob, shoal.JaxJob, shoal.HorovodJob, shoal.MPIJob, shoal.SklearnJob,
]  # fmt: skip


@pytest.fixture
def script(project: Path) -> Path:
    file = project / "train.py"
    file.touch()
    return file


def test_there_is_a_class_for_every_framework() -> None:
    assert {kind.framework for kind in (*CLASSES, shoal.CommandJob)} == set(FRAMEWORKS)


@pytest.mark.parametrize("kind", CLASSES)
def test_every_class_becomes_the_one_specification(kind: type[shoal.TorchJob], script: Path) -> None:
    spec = kind(script, workers=3, args=["--epochs", "5"], cpu=1, memory="2GiB", estimate="20m", tags=["x"]).spec()
    assert (spec.framework, spec.script, spec.args) == (kind.framework, "train.py", ("--epochs", "5"))
    assert (spec.resources.cpu, spec.resources.memory, spec.estimate) == (1, 2 << 30, 1200)


def test_a_torch_job_says_servers_strategy_and_gpus(script: Path) -> None:
    spec = shoal.TorchJob(script, workers=4, servers=2, strategy="ps-async", gpu=1, gpu_type="h200").spec()
    assert spec.strategy == "ps-async"
    assert spec.servers is not None and spec.servers.low == 2
    assert (spec.resources.gpu, spec.resources.gpu_type) == (1, "h200")


def test_an_argument_that_makes_no_sense_is_not_taken(script: Path) -> None:
    with pytest.raises(TypeError):
        shoal.LightGBMJob(script, gpu=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        shoal.XGBoostJob(script, servers=1)  # type: ignore[call-arg]


def test_a_tensorflow_job_may_have_a_chief_and_evaluators(script: Path) -> None:
    spec = shoal.TensorFlowJob(script, workers=2, chief=True, evaluators=1).spec()
    assert {role.name: role.low for role in spec.expand()} == {"chief": 1, "evaluator": 1, "worker": 2}
    assert shoal.TensorFlowJob(script).spec().roles == {}


def test_a_command_may_be_one_string() -> None:
    assert shoal.CommandJob("echo 'a b' c").spec().command == ("echo", "a b", "c")
    assert shoal.CommandJob(["echo", "a b"]).spec().command == ("echo", "a b")


def test_a_wrong_value_is_refused_when_the_specification_is_made(script: Path) -> None:
    with pytest.raises(BadSpec, match="workers"):
        shoal.TorchJob(script, workers=0).spec()
    with pytest.raises(BadSpec, match="there is no"):
        shoal.TorchJob("missing.py").spec()


def test_a_job_object_is_submitted_and_planned(
    script: Path, project: Path, server: FakeServer, api: Api, chunkery: Chunkery
) -> None:
    server.on("POST", "/jobs", lambda _: Answer({"id": "abc", "state": "queued"}, 201))
    server.on("POST", "/plan", {"roles": []})
    job = shoal.TorchJob("train.py", folder=project, workers=2)
    assert job.submit(api).id == "abc"
    assert chunkery.paths() == ["train.py"]
    assert job.plan(api) == {"roles": []}
    assert server.asked[-1].json()["spec"]["framework"] == "pytorch"
