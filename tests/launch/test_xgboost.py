import json

import pytest

from shoal.contract import Process
from shoal.job.spec import parse
from shoal.launch import Launcher
from shoal.launch.conformance import LauncherContract, render
from shoal.launch.xgboost import XGBoost

from .golden import check

LOOPBACK = "127.0.0.{}"


class TestXGBoost(LauncherContract):
    @pytest.fixture
    def launcher(self) -> Launcher:
        return XGBoost()


def rendered(nodes: int = 1, address: str = LOOPBACK, **spec: object) -> dict[str, Process]:
    keys = {"framework": "xgboost", **({} if "data" in spec else {"script": "train.py"}), **spec}
    return render(XGBoost(), parse(keys), nodes, address)


def test_two_workers_and_their_tracker_are_as_in_the_golden_file() -> None:
    check("xgboost", rendered(nodes=2, address="10.0.0.{}", workers=2, args=["--depth", "4"]))


def test_training_without_a_script_is_as_in_the_golden_file() -> None:
    job = {"data": "rows.csv", "label": "y", "valid": 0.2, "params": {"max_depth": 4, "rounds": 50}, "workers": 2}
    check("xgboost-rows", rendered(**job))


def test_the_tracker_is_shoals_own_and_asks_for_nothing() -> None:
    tracker = rendered(workers=2, resources={"cpu": 2, "memory": "1GiB", "gpu": 1})["tracker-0"]
    assert tracker.argv[1:] == ["-m", "shoal.adapters.tracker"]
    assert (tracker.cpu, tracker.memory, tracker.env["CUDA_VISIBLE_DEVICES"]) == (None, None, "")


def test_everybody_is_told_the_trackers_address_never_a_name() -> None:
    for process in rendered(workers=2).values():
        assert (process.env["DMLC_TRACKER_URI"], process.env["DMLC_TRACKER_PORT"]) == ("127.0.0.1", "40000")
        assert (process.env["SHOAL_GATE"], process.env["DMLC_NUM_WORKER"]) == ("40001", "2")


def test_tasks_sort_as_texts_in_the_order_of_the_ranks() -> None:
    processes = rendered(workers=12)
    tasks = [processes[f"worker-{rank}"].env["DMLC_TASK_ID"] for rank in range(12)]
    assert tasks == sorted(tasks) and len(set(tasks)) == 12


def test_a_worker_with_two_gpus_is_two_processes_that_see_one_each() -> None:
    processes = rendered(workers=2, resources={"gpu": 2})
    seen = [processes[f"worker-{rank}"].env["CUDA_VISIBLE_DEVICES"] for rank in range(4)]
    assert seen == ["0", "1", "2", "3"]


def test_a_script_has_as_many_threads_as_cores_were_asked_for() -> None:
    assert rendered(workers=2, resources={"cpu": 3.5})["worker-0"].env["OMP_NUM_THREADS"] == "3"
    assert rendered(workers=2)["worker-0"].env["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in rendered(workers=1)["worker-0"].env
    assert "OMP_NUM_THREADS" not in rendered(workers=2, data="rows.csv")["worker-0"].env


def test_the_workers_path_teaches_xgboost_before_the_users_own_paths() -> None:
    path = rendered(env={"PYTHONPATH": "/mine"})["worker-0"].env["PYTHONPATH"]
    assert path == "@library/shoal/adapters/xgboost_path:@library:/mine"


def test_the_trainers_task_is_one_argument_a_person_can_read() -> None:
    *command, task = rendered(data="pool://me/rows.csv", label=0)["worker-0"].argv
    assert command == ["python3", "-m", "shoal.adapters.boost", "xgboost"]
    assert json.loads(task) == {"data": "pool://me/rows.csv", "label": 0}
