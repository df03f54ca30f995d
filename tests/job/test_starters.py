"""Which commands start the processes of a PyTorch script themselves."""

import pytest

from shoal.job.spec import parse
from shoal.job.starters import starter


@pytest.mark.parametrize(
    ("command", "name", "rest"),
    [
        ("torchrun --nproc_per_node=2 train.py", "torchrun", ("--nproc_per_node=2", "train.py")),
        ("/opt/bin/torchrun train.py", "torchrun", ("train.py",)),
        ("python -m torch.distributed.run train.py", "torchrun", ("train.py",)),
        ("python3.11 -m torch.distributed.launch train.py", "torchrun", ("train.py",)),
        ("accelerate launch --cpu train.py", "accelerate", ("--cpu", "train.py")),
        ("python -m accelerate.commands.launch train.py", "accelerate", ("train.py",)),
        ("deepspeed --num_gpus 2 train.py", "deepspeed", ("--num_gpus", "2", "train.py")),
    ],
)
def test_a_starter_is_recognised_by_its_name(command: str, name: str, rest: tuple[str, ...]) -> None:
    found = starter(command.split())
    assert found is not None and (found.name, found.rest) == (name, rest)
    assert parse({"command": command.split()}).kind == "pytorch"


@pytest.mark.parametrize("command", ["python train.py", "accelerate config", "./torchrun.sh", "python -m pytest", "sh"])
def test_other_programs_are_none(command: str) -> None:
    assert starter(command.split()) is None
    assert parse({"command": command.split()}).kind == "command"


def test_a_framework_that_is_named_is_kept() -> None:
    assert parse({"command": ["torchrun", "x.py"], "framework": "command"}).kind == "command"
