"""Programs that start the processes of a PyTorch script themselves, recognised by their names: torchrun and the like.

Each worker is to them what a node is: they start on it as many processes as they were told.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

TORCHRUN, ACCELERATE, DEEPSPEED = "torchrun", "accelerate", "deepspeed"

_MODULES = {
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": TORCHRUN,
    "accelerate.commands.launch": ACCELERATE,
    "deepspeed.launcher.runner": DEEPSPEED,
}
_PYTHON = re.compile(r"python(3(\.\d+)?)?")


@dataclass(frozen=True, slots=True)
class Starter:
    """What was recognised: which one, the module it is (None: the program itself), and the words behind it."""

    name: str
    module: str | None
    program: str
    rest: tuple[str, ...]


def starter(command: Sequence[str] | None) -> Starter | None:
    """The starter that a command begins with; None for any other program."""
    if not command:
        return None
    program, rest = command[0], tuple(command[1:])
    name = PurePosixPath(program).name
    if name == ACCELERATE and rest[:1] == ("launch",):
        return Starter(ACCELERATE, "accelerate.commands.launch", program, rest[1:])
    if name in (TORCHRUN, DEEPSPEED):
        module = next(module for module, one in _MODULES.items() if one == name)
        return Starter(name, module, program, rest)
    if _PYTHON.fullmatch(name) and rest[:1] == ("-m",) and rest[1:2] and rest[1] in _MODULES:
        return Starter(_MODULES[rest[1]], rest[1], program, rest[2:])
    return None
