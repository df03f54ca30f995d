"""Ranks in a container image: their commands wrapped in `podman run` or `docker run`, and what is left of them removed.

The container sees the job's folder, the gang's folder (roster, inputs), the library and shared memory at the paths they
have outside, with the same user, the host's network and the declared variables. Variables are named on the command line
and never valued there: their values come from the environment the program itself is started with.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence

from shoal._lib.ids import short_id
from shoal.contract import GANG, MEMBER, START, Environment, Process, Task

PROGRAMS = ("podman", "docker")
SETTINGS = ("CONTAINERS_", "CONTAINER_HOST", "DOCKER_", "XDG_RUNTIME_DIR")  # how variables for the program itself begin
PYTHON = "python3"  # in the image, for a script that names no interpreter
_RUN = ("run", "--rm", "--init")  # --init: a first process that has no handler of its own would never hear SIGTERM
_REMOVE_LIMIT = 30.0  # seconds
_CLIENT = ("PATH", "HOME")  # podman needs the machine's; the image has its own, unless the job says otherwise


class Containers(NamedTuple):
    """How this node runs images."""

    program: str  # podman or docker, by its path
    image: str
    mounts: Sequence[str]  # PATH or PATH:ro, the same inside and outside
    work: str
    key: str  # of the gang; begins every container's name

    def put_on(self, what: Process) -> Process:
        """The process as one that runs in a container of its own."""
        argv = [PYTHON, *what.argv[1:]] if what.argv[0] == "@python" else what.argv
        kept = {name: value for name, value in what.env.items() if name not in _CLIENT}
        return replace(what, argv=[*self._run(what), self.image, *argv], env={**_settings(), **kept})

    def _run(self, what: Process) -> Iterator[str]:
        yield from (self.program, *_RUN, f"--name={self.key}-{what.name}-{short_id(4)}")
        yield from ("--network=host", "--ipc=host", f"--workdir={self.work}", *_user(self.program))
        yield from (f"--volume={_volume(mount)}" for mount in self.mounts)
        yield from (f"--env={name}" for name in sorted({*what.env, GANG, MEMBER, START}.difference(_CLIENT)))
        yield from (f"--env={name}={what.env[name]}" for name in _CLIENT if name in what.env)
        yield from _limits(what)
        if what.env.get("CUDA_VISIBLE_DEVICES"):
            yield "--gpus=all" if _is_docker(self.program) else "--device=nvidia.com/gpu=all"

    def remove_all(self) -> None:
        """Ends and removes what is left of the gang's containers here; harmless when nothing is."""
        import subprocess  # here, because only gangs in containers need it

        listed = [self.program, "ps", "--all", "--quiet", f"--filter=name=^/?{self.key}-"]
        try:
            found = subprocess.run(listed, capture_output=True, timeout=_REMOVE_LIMIT, check=False).stdout.split()
            if found:
                words = [self.program, "rm", "--force", *(os.fsdecode(each) for each in found)]
                subprocess.run(words, capture_output=True, timeout=_REMOVE_LIMIT, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return  # the program is gone or hangs: its containers bear the gang's name, for whoever looks


def is_container(argv: Sequence[str]) -> bool:
    """Whether the command is one that `put_on` made."""
    return len(argv) > len(_RUN) and argv[1 : len(_RUN) + 1] == [*_RUN]


def find_program(path: str) -> Optional[str]:
    """podman or docker on a PATH."""
    folders = [folder for folder in path.split(os.pathsep) if folder]
    candidates = (f"{folder}/{name}" for name in PROGRAMS for folder in folders)
    return next((each for each in candidates if os.access(each, os.X_OK)), None)


def mounts_of(task: Task, folders: Sequence[Path]) -> List[str]:
    """What ranks must see, at the paths it has outside; the library is a link, so both of its ends."""
    found = [f"{folder}" for folder in folders]
    if task.library:
        library = Path(task.library)
        found += [f"{library}:ro", *(f"{link.resolve()}:ro" for link in library.iterdir() if link.is_symlink())]
    return found


def pull_words(program: str, wanted: Environment) -> List[str]:
    """The command that brings the image; credentials are named by their file."""
    if not _is_docker(program):
        auth = [f"--authfile={wanted.auth}"] if wanted.auth else []
        return [program, "pull", *auth, wanted.image]
    auth = [f"--config={Path(wanted.auth).parent}"] if wanted.auth else []
    return [program, *auth, "pull", wanted.image]


def _settings() -> Dict[str, str]:
    """What tells podman or docker on this node where its service, its settings and its images are."""
    return {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)}


def _volume(mount: str) -> str:
    path, colon, mode = mount.partition(":")
    return f"{path}:{path}{colon}{mode}"


def _user(program: str) -> List[str]:
    """The same user inside: as it is for root, mapped by podman for others, by number for docker."""
    if os.getuid() == 0:
        return []
    return [f"--user={os.getuid()}:{os.getgid()}"] if _is_docker(program) else ["--userns=keep-id"]


def _limits(what: Process) -> Iterator[str]:
    if what.memory is not None:
        yield f"--memory={what.memory}"
    if what.cpu is not None:
        yield f"--cpus={what.cpu:g}" if what.cpu_quota else f"--cpu-shares={max(2, int(what.cpu * 1024))}"


def _is_docker(program: str) -> bool:
    return Path(program).name == "docker"
