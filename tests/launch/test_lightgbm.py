import pytest

from shoal.contract import Process
from shoal.job.spec import parse
from shoal.launch import Launcher
from shoal.launch.conformance import LauncherContract, render
from shoal.launch.lightgbm import MOST_MACHINES, LightGBM

from .golden import check

LOOPBACK = "127.0.0.{}"


class TestLightGBM(LauncherContract):
    @pytest.fixture
    def launcher(self) -> Launcher:
        return LightGBM()


def rendered(nodes: int = 1, address: str = LOOPBACK, **spec: object) -> dict[str, Process]:
    keys = {"framework": "lightgbm", **({} if "data" in spec else {"script": "train.py"}), **spec}
    return render(LightGBM(), parse(keys), nodes, address)


def test_two_workers_on_two_nodes_are_as_in_the_golden_file() -> None:
    check("lightgbm", rendered(nodes=2, address="10.0.0.{}", workers=2))


def test_training_without_a_script_is_as_in_the_golden_file() -> None:
    check("lightgbm-rows", rendered(workers=2, data="rows.parquet", label="y", params={"num_leaves": 7}))


def test_arguments_name_the_machines_and_the_workers_own_port() -> None:
    args = ["--machines", "{worker_hosts}", "--port", "{port}", "--machines-count", "{size}"]
    told = rendered(workers=2, args=args)["worker-1"]
    assert told.argv[2:] == [
        "--machines",
        "127.0.0.1:40000,127.0.0.1:40002",
        "--port",
        "40002",
        "--machines-count",
        "2",
    ]
    assert told.env["LIGHTGBM_MACHINES"] == "127.0.0.1:40000,127.0.0.1:40002"


def test_a_list_too_long_for_a_variable_is_left_to_the_roster_file() -> None:
    assert "LIGHTGBM_MACHINES" not in rendered(workers=MOST_MACHINES + 1)["worker-0"].env


def test_any_interpreter_finds_shoal() -> None:
    assert rendered()["worker-0"].env["PYTHONPATH"] == "@library"
