import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shoal._lib.ports import free_ports
from shoal.contract import Process
from shoal.job.spec import parse
from shoal.launch import Launcher
from shoal.launch.conformance import LauncherContract, render
from shoal.launch.pytorch import PyTorch

from .golden import check

TORCHRUN_OWN = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}  # the agent's files and signals
LOOPBACK = "127.0.0.{}"


class TestPyTorch(LauncherContract):
    @pytest.fixture
    def launcher(self) -> Launcher:
        return PyTorch()


def rendered(nodes: int = 2, address: str = "10.0.0.{}", attempt: int = 1, **spec: object) -> dict[str, Process]:
    return render(PyTorch(), parse({"script": "train.py", **spec}), nodes, address, attempt)


def test_two_nodes_with_two_gpus_each_are_four_processes_as_in_the_golden_file() -> None:
    job = {"workers": 2, "resources": {"gpu": 2, "cpu": 4, "memory": "8GiB"}, "args": ["--lr", "0.1"], "retries": 3}
    check("pytorch-2-nodes-2-gpus", rendered(**job, attempt=2))


def test_servers_have_everything_but_a_rank_as_in_the_golden_file() -> None:
    check("pytorch-servers", rendered(nodes=1, address=LOOPBACK, workers=2, servers=1))


def test_a_world_of_one_has_all_the_variables_too() -> None:
    (process,) = rendered(nodes=1).values()
    assert (process.env["RANK"], process.env["WORLD_SIZE"], process.env["LOCAL_WORLD_SIZE"]) == ("0", "1", "1")
    assert process.env["MASTER_PORT"] == "40000"
    assert "OMP_NUM_THREADS" not in process.env


def test_cuda_local_rank_is_a_gpu_of_its_own_however_the_workers_are_cut_into_slots() -> None:
    for workers, gpus in ((4, 1), (2, 2), (1, 4)):
        processes = rendered(nodes=1, workers=workers, resources={"gpu": gpus}).values()
        assert [p.env["LOCAL_RANK"] for p in processes] == ["0", "1", "2", "3"]
        assert {p.env["CUDA_VISIBLE_DEVICES"] for p in processes} == {"0,1,2,3"}


def test_local_rank_counts_on_each_node_and_the_group_is_the_node() -> None:
    processes = rendered(workers=4).values()
    told = [tuple(p.env[name] for name in ("RANK", "LOCAL_RANK", "GROUP_RANK")) for p in processes]
    assert told == [("0", "0", "0"), ("1", "1", "0"), ("2", "0", "1"), ("3", "1", "1")]


def test_the_loopback_interface_is_named_only_when_nobody_is_elsewhere() -> None:
    here = rendered(address=LOOPBACK, workers=2)["worker-0"].env
    apart = rendered(workers=2)["worker-0"].env
    assert (here["GLOO_SOCKET_IFNAME"], here["NCCL_SOCKET_IFNAME"]) == ("lo", "lo")
    assert not {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"} & apart.keys()


def test_the_users_threads_win_but_not_his_rank() -> None:
    env = {"OMP_NUM_THREADS": "3", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "RANK": "5", "MASTER_PORT": "29500"}
    told = rendered(nodes=1, workers=2, env=env)["worker-1"].env
    assert (told["OMP_NUM_THREADS"], told["TORCH_NCCL_ASYNC_ERROR_HANDLING"]) == ("3", "0")
    assert (told["RANK"], told["MASTER_PORT"]) == ("1", "40000")


def test_the_jobs_interpreter_comes_before_the_submitters() -> None:
    assert rendered()["worker-0"].argv == ["python3", "train.py"]
    assert rendered(environment="/opt/py/bin/python")["worker-0"].argv == ["/opt/py/bin/python", "train.py"]


@pytest.mark.parametrize("environment", ["pytorch-2.13", "requirements.txt", "image://team/train:1"])
def test_an_environment_that_the_node_finds_or_builds_leaves_its_interpreter_open(environment: str) -> None:
    processes = rendered(environment=environment, strategy="ps-async", workers=1)
    assert processes["worker-0"].argv == ["@python", "train.py"]
    assert processes["server-0"].argv == ["@python", "-m", "shoal.train.ps"]
    assert processes["worker-0"].env["PYTHONPATH"] == "@library"


def test_a_role_with_a_command_of_its_own_runs_that() -> None:
    roles = {"worker": {"count": 1}, "evaluator": {"count": 1, "command": ["./evaluate", "--once"]}}
    processes = rendered(roles=roles)
    assert processes["evaluator-0"].argv == ["./evaluate", "--once"]
    assert "RANK" not in processes["evaluator-0"].env


@pytest.mark.real
def test_a_worker_is_told_all_that_torchrun_tells_and_with_the_same_values(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "show.py"
    script.write_text(
        "import json, os, pathlib\n"
        "here = pathlib.Path(__file__).with_name(os.environ['RANK'] + '.json')\n"
        "here.write_text(json.dumps(dict(os.environ)))\n"
    )
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", str(script)]
    clean = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    run = subprocess.run(torchrun, env=clean, capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stderr
    ours = rendered(nodes=1, address=LOOPBACK, workers=2)
    for rank in ("0", "1"):
        told = json.loads((tmp_path / f"{rank}.json").read_text())
        theirs = {name: value for name, value in told.items() if name not in clean}
        mine = ours[f"worker-{rank}"].env
        assert theirs.keys() - TORCHRUN_OWN - _python_own(theirs) <= mine.keys()
        assert {name: mine[name] for name in _SAME} == {name: theirs[name] for name in _SAME}


SUM = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor(float(dist.get_rank() + 1))
dist.all_reduce(total)
print(int(total), dist.get_world_size(), flush=True)
dist.destroy_process_group()
"""


def test_parameter_servers_are_the_librarys_own_process_as_in_the_golden_file() -> None:
    processes = rendered(nodes=1, address=LOOPBACK, workers=2, strategy="ps-ssp:staleness=3")
    assert processes["server-0"].argv[1:] == ["-m", "shoal.train.ps"]
    check("pytorch-parameter-server", processes)


def test_a_server_with_a_command_of_its_own_runs_that() -> None:
    roles = {"worker": {"count": 1}, "server": {"command": ["./serve"]}}
    assert rendered(strategy="ps-sync", roles=roles)["server-0"].argv == ["./serve"]


def test_only_processes_of_the_training_library_get_its_port() -> None:
    assert "SHOAL_PORT_TRAIN" not in rendered(workers=2)["worker-1"].env
    assert "SHOAL_PORT_TRAIN" not in rendered(workers=2, strategy="native")["worker-1"].env
    assert "SHOAL_PORT_TRAIN" in rendered(workers=2, strategy="gossip")["worker-1"].env


def test_another_interpreter_finds_shoal_before_the_users_own_paths() -> None:
    assert "PYTHONPATH" not in rendered()["worker-0"].env
    other = rendered(environment="/opt/python", env={"PYTHONPATH": "/mine"})
    assert other["worker-0"].env["PYTHONPATH"] == "@library:/mine"


@pytest.mark.real
@pytest.mark.parametrize("workers", [1, 2])
def test_a_script_that_knows_nothing_of_us_finds_its_peers(workers: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(SUM)
    inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    processes = rendered(nodes=min(2, workers), address="127.0.0.{}", workers=workers, environment=sys.executable)
    port = str(free_ports(1)[0])
    ranks = [
        subprocess.Popen(p.argv, cwd=tmp_path, env={**inherited, **p.env, "MASTER_PORT": port}, stdout=subprocess.PIPE)
        for p in processes.values()
    ]
    said = [rank.communicate(timeout=100)[0].decode() for rank in ranks]
    assert said == [f"{sum(range(workers + 1))} {workers}\n"] * workers


_SAME = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "OMP_NUM_THREADS"),
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)


def _python_own(environment: dict[str, str]) -> set[str]:
    """What the interpreter and the C library add to any process, with or without torchrun."""
    return {name for name in environment if name.startswith(("LC_", "__CF"))}
