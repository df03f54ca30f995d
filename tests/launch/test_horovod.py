import pytest

from shoal.contract import Process
from shoal.job.spec import parse
from shoal.launch import Launcher
from shoal.launch.conformance import LauncherContract, render
from shoal.launch.horovod import Horovod

from .golden import check

LOOPBACK = "127.0.0.{}"


class TestHorovod(LauncherContract):
    @pytest.fixture
    def launcher(self) -> Launcher:
        return Horovod()


def rendered(nodes: int = 2, address: str = "10.0.0.{}", **spec: object) -> dict[str, Process]:
    return render(Horovod(), parse({"framework": "horovod", "script": "train.py", **spec}), nodes, address)


def test_two_workers_on_one_machine_are_told_what_horovodrun_tells_as_in_the_golden_file() -> None:
    check("horovod", rendered(nodes=1, address=LOOPBACK, workers=2))


def test_the_packages_come_before_shoal_and_both_before_the_users_own_paths() -> None:
    told = rendered(env={"PYTHONPATH": "/mine"})["worker-0"].env["PYTHONPATH"]
    assert told == "@library/shoal/adapters/horovod_path:@library:/mine"


def test_everything_that_pytorch_tells_is_told_too() -> None:
    told = rendered(nodes=1, workers=2)["worker-1"].env
    assert (told["RANK"], told["WORLD_SIZE"], told["LOCAL_RANK"]) == ("1", "2", "1")
    assert told["MASTER_PORT"] == "40000"


def test_cross_counts_the_machines_that_have_a_worker_of_this_local_rank() -> None:
    processes = rendered(nodes=2, workers=3).values()
    names = ("HOROVOD_RANK", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE")
    told = [tuple(process.env[name] for name in names) for process in processes]
    assert told == [("0", "0", "2", "0", "2"), ("1", "1", "2", "0", "1"), ("2", "0", "1", "1", "2")]


def test_byteps_counts_machines_as_workers() -> None:
    told = rendered(nodes=2, workers=4)["worker-3"].env
    assert (told["DMLC_WORKER_ID"], told["DMLC_NUM_WORKER"], told["BYTEPS_LOCAL_RANK"]) == ("1", "2", "1")
    assert (told["BYTEPS_LOCAL_SIZE"], told["DMLC_ROLE"]) == ("2", "worker")


def test_a_real_horovod_meets_at_the_port_of_the_first_worker() -> None:
    processes = rendered(workers=2)
    first, second = processes["worker-0"].env, processes["worker-1"].env
    assert first["SHOAL_PORT_RENDEZVOUS"] == first["HOROVOD_GLOO_RENDEZVOUS_PORT"]
    assert second["HOROVOD_GLOO_RENDEZVOUS_PORT"] == first["SHOAL_PORT_RENDEZVOUS"]
    assert second["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "10.0.0.1"
    assert "SHOAL_PORT_RENDEZVOUS" not in second


def test_gloo_listens_on_loopback_only_when_nobody_is_elsewhere_and_the_user_may_choose() -> None:
    assert rendered(nodes=1, address=LOOPBACK, workers=2)["worker-0"].env["HOROVOD_GLOO_IFACE"] == "lo"
    assert "HOROVOD_GLOO_IFACE" not in rendered(workers=2)["worker-0"].env
    assert rendered(env={"HOROVOD_GLOO_IFACE": "eth1"})["worker-0"].env["HOROVOD_GLOO_IFACE"] == "eth1"


def test_nobody_may_change_his_rank() -> None:
    env = {"HOROVOD_RANK": "7", "HOROVOD_GLOO_RENDEZVOUS_PORT": "1"}
    told = rendered(workers=2, env=env)["worker-1"].env
    assert told["HOROVOD_RANK"] == "1" and told["HOROVOD_GLOO_RENDEZVOUS_PORT"] != "1"
