"""torchrun, accelerate and deepspeed as the command of each worker: they are told of the others, once per worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.adapters.deepspeed import arguments
from shoal.contract import Member, Process, Roster
from shoal.job.spec import parse
from shoal.launch.conformance import render
from shoal.launch.pytorch import PyTorch


def rendered(command: str, nodes: int = 2, **spec: object) -> dict[str, Process]:
    return render(PyTorch(), parse({"command": command.split(), "workers": 2, **spec}), nodes)


def test_a_worker_is_to_torchrun_what_a_node_is() -> None:
    second = rendered("torchrun --nproc_per_node=2 train.py")["worker-1"]
    assert second.argv == ["python3", "-m", "torch.distributed.run", "--nproc_per_node=2", "train.py"]
    told = {name: value for name, value in second.env.items() if name.startswith("PET_")}
    assert told == {
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "10.0.0.1",
        "PET_MASTER_PORT": second.env["MASTER_PORT"],
    }


def test_a_world_of_its_own_on_each_worker_stays_so() -> None:
    alone = rendered("torchrun --standalone train.py")["worker-1"]
    assert not any(name.startswith("PET_") for name in alone.env)


def test_a_worker_with_two_gpus_is_one_process_that_sees_its_own() -> None:
    processes = rendered("torchrun --nproc_per_node=gpu train.py", nodes=1, resources={"gpu": 2})
    assert [p.env["CUDA_VISIBLE_DEVICES"] for p in processes.values()] == ["0,1", "2,3"]


def test_the_interpreter_is_the_jobs_or_the_one_beside_the_program() -> None:
    assert rendered("torchrun x.py", environment="/opt/py/bin/python")["worker-0"].argv[0] == "/opt/py/bin/python"
    assert rendered("python -m torch.distributed.run x.py")["worker-0"].argv[0] == "python3"
    assert rendered("/my/bin/torchrun x.py")["worker-0"].argv[0] == "/my/bin/python"
    assert rendered("/my/bin/python3 -m torch.distributed.run x.py")["worker-0"].argv[0] == "/my/bin/python3"


def test_accelerate_is_told_where_the_first_is_and_on_gpus_how_many_there_are() -> None:
    where = ["--main_process_ip", "10.0.0.1", "--main_process_port", "40000"]
    launch = ["python3", "-m", "accelerate.commands.launch", *where]
    assert rendered("accelerate launch --cpu x.py")["worker-1"].argv == [*launch, "--cpu", "x.py"]
    several = ["--num_machines", "2", "--machine_rank", "1", "--num_processes", "8"]
    on_gpus = rendered("accelerate launch x.py", resources={"gpu": 4})["worker-1"]
    assert on_gpus.argv == [*launch, *several, "x.py"]


def test_a_role_of_the_users_own_has_a_port_that_others_can_name() -> None:
    roles = {
        "worker": {"count": 2, "command": ["torchrun", "--standalone", "x.py", "--at={lighthouse_hosts}"]},
        "lighthouse": {"command": ["serve", "{port}"]},
    }
    processes = render(PyTorch(), parse({"framework": "pytorch", "roles": roles}))
    port = processes["lighthouse-0"].argv[1]
    assert processes["worker-0"].argv[-1].endswith(f":{port}") and port != "0"


@pytest.mark.parametrize(
    ("gpus", "slots", "included"),
    [
        ("", [1, 1], None),
        ("0,1", [2, 2], None),
        ("2,3", [2, 4], "worker-0@worker-1:2,3"),
    ],
)
def test_deepspeed_finds_the_workers_in_a_hostfile_and_keeps_to_its_own_gpus(
    gpus: str, slots: list[int], included: str | None, tmp_path: Path
) -> None:
    roster = tmp_path / "roster.json"
    members = [Member(f"worker-{number}", "worker", number, "n", "10.0.0.1", {}) for number in range(2)]
    roster.write_text(Roster(1, "k", members).to_json())
    told = {"SHOAL_ROSTER": str(roster), "SHOAL_MEMBER": "worker-1", "CUDA_VISIBLE_DEVICES": gpus}
    told |= {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "40000"}
    words = arguments(told, ["train.py", "--lr=1"], tmp_path / "hosts")
    assert (tmp_path / "hosts").read_text() == f"worker-0 slots={slots[0]}\nworker-1 slots={slots[1]}\n"
    assert words[2:9] == ["--no_ssh", "--node_rank", "1", "--master_addr", "10.0.0.1", "--master_port", "40000"]
    assert words[-2:] == ["train.py", "--lr=1"]
    assert (words[words.index("--include") + 1] if "--include" in words else None) == included


def test_the_command_of_the_job_is_that_of_its_roles_but_not_of_shoals_own() -> None:
    roles = {role.name: role for role in parse({"command": ["torchrun", "x.py"], "strategy": "ps-async"}).expand()}
    assert roles["worker"].command == ("torchrun", "x.py")
    assert roles["server"].command is None
