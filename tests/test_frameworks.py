"""The table of frameworks and strategies: what each pair has, and what is refused."""

import ast
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.errors import BadSpec, UnknownName
from shoal.frameworks import FRAMEWORKS, NATIVE, framework
from shoal.job.roles import Role
from shoal.job.spec import parse
from shoal.launch import LAUNCHERS
from shoal.strategy import STRATEGIES

ROOT = Path(shoal.__file__).parent


def roles(**keys: Any) -> dict[str, Role]:
    return {role.name: role for role in parse({"script": "train.py", **keys}).expand()}


def counts(**keys: Any) -> dict[str, int]:
    return {name: role.low for name, role in roles(**keys).items()}


PAIRS = [(name, strategy) for name, row in FRAMEWORKS.items() for strategy in row.pairs]


def test_every_launcher_has_its_row() -> None:
    assert set(LAUNCHERS.names()) <= set(FRAMEWORKS)


def test_pytorch_has_all_strategies_and_nobody_invents_a_name() -> None:
    assert set(FRAMEWORKS["pytorch"].pairs) == set(STRATEGIES)
    assert {strategy for _, strategy in PAIRS} == set(STRATEGIES)


@pytest.mark.parametrize(("name", "strategy"), PAIRS)
def test_a_job_of_any_pair_has_its_roles_without_being_told(name: str, strategy: str) -> None:
    found = roles(framework=name, strategy=strategy, workers=2)
    parts = {part.role: part for part in framework(name).pair(strategy).parts if part.count}
    assert found.keys() == parts.keys() and found["worker"].low == 2
    assert all(found[part].leads == parts[part].leads for part in found)


@pytest.mark.parametrize(("name", "strategy"), PAIRS)
def test_somebody_leads_in_every_pair(name: str, strategy: str) -> None:
    assert any(role.leads != "none" for role in roles(framework=name, strategy=strategy, workers=2).values())


@pytest.mark.parametrize("name", [name for name in FRAMEWORKS if name != "pytorch"])
def test_every_strategy_that_a_framework_lacks_is_refused_with_the_reason_and_what_it_has(name: str) -> None:
    row = FRAMEWORKS[name]
    for strategy in STRATEGIES.keys() - row.pairs.keys():
        with pytest.raises(BadSpec, match=f"{name} has no strategy '{strategy}'") as refused:
            parse({"script": "train.py", "framework": name, "strategy": strategy})
        assert row.why_not in refused.value.message
        assert any(f"take {known}" in refused.value.message for known in row.pairs)


def test_an_unknown_framework_offers_the_nearest() -> None:
    with pytest.raises(BadSpec, match="did you mean 'tensorflow'"):
        parse({"script": "train.py", "framework": "tensorflw"})
    with pytest.raises(UnknownName):
        framework("caffe")


def test_a_tensorflow_ps_job_is_led_by_its_chief_alone() -> None:
    found = roles(framework="tensorflow", strategy="ps-async", workers=2, servers=1)
    assert {name: role.leads for name, role in found.items()} == {"worker": "none", "server": "none", "chief": "all"}
    assert {name for name, role in found.items() if role.ours} == {"worker", "server"}


def test_an_evaluator_may_be_lost_altogether() -> None:
    found = roles(framework="tensorflow", strategy="allreduce", workers=2, roles={"evaluator": {}})
    assert found["evaluator"].spare and found["evaluator"].on_lost == "continue" and found["evaluator"].leads == "none"


def test_mxnet_has_a_scheduler_and_a_server_by_itself() -> None:
    assert counts(framework="mxnet", workers=2) == {"worker": 2, "server": 1, "scheduler": 1}
    assert counts(framework="mxnet", workers=2, servers=3, strategy="ps-async")["server"] == 3


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"framework": "tensorflow", "roles": {"ps": {}}}, "did you mean 'server'"),
        ({"framework": "jax", "roles": {"evaluator": {}}}, "it has worker"),
        ({"framework": "paddle", "roles": {"trainer": {"count": 2}}}, "did you mean 'worker'"),
        ({"framework": "mxnet", "roles": {"scheduler": {"count": 2}}}, "exactly 1"),
        ({"framework": "tensorflow", "strategy": "ps-async", "roles": {"chief": {"count": 2}}}, "exactly 1"),
        ({"framework": "mxnet", "servers": 0}, "servers must be at least 1"),
        ({"framework": "tensorflow", "strategy": "ps-async", "servers": 0}, "servers must be at least 1"),
        ({"framework": "paddle", "strategy": "ps-sync", "servers": 0}, "servers must be at least 1"),
        ({"framework": "xgboost", "servers": 2}, "allreduce has no servers"),
        ({"framework": "jax", "strategy": "allreduce:bucket=1"}, "write allreduce alone"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_would(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(BadSpec, match=said):
        roles(**keys)


@pytest.mark.parametrize("strategy", [None, "allreduce", "native"])
def test_a_horovod_worker_that_is_to_be_started_again_is_refused_with_the_reason_and_what_would_do(
    strategy: str | None,
) -> None:
    with pytest.raises(BadSpec, match="begin together") as refused:
        roles(framework="horovod", strategy=strategy, roles={"worker": {"count": 2, "on_lost": "restart"}})
    assert "roles.worker.on_lost" in refused.value.message and "take fail" in refused.value.message
    found = roles(framework="horovod", strategy=strategy, roles={"worker": {"count": 2, "on_lost": "continue"}})
    assert found["worker"].on_lost == "continue"


def test_a_role_with_a_command_of_its_own_is_free() -> None:
    assert counts(framework="jax", roles={"watch": {"command": ["top"]}}) == {"worker": 1, "watch": 1}


TRAVELS = [*(ROOT / "train").rglob("*.py"), *(ROOT / "adapters").rglob("*.py"), ROOT / "strategy.py"]


@pytest.mark.parametrize("file", TRAVELS, ids=lambda file: str(file.relative_to(ROOT)))
def test_what_comes_along_is_of_the_python_that_is_asked_for(file: Path) -> None:
    told = "mxnet" if file.name == "mxnet.py" else "jax"
    major, minor = map(int, FRAMEWORKS[told].python.split("."))
    ast.parse(file.read_text(), feature_version=(major, minor))


def test_hands_off_is_there_for_every_framework() -> None:
    assert all(NATIVE in row.pairs for row in FRAMEWORKS.values())
