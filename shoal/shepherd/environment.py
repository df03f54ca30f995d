"""What the ranks of this node run in: found where it lies, built where it does not, and put into their commands."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Dict, NamedTuple, Optional, Union

from shoal.contract import Environment, Process, Task
from shoal.shepherd.place import Place

if TYPE_CHECKING:
    from shoal.shepherd.building import Site
    from shoal.shepherd.container import Containers

    Fitting = Union["Outfit", Containers]  # either can be `put_on` a process

PYTHON = "@python"  # in a command: the environment's interpreter

Tell = Callable[[str], None]


class NotReady(Exception):
    """The environment cannot be had; the message is for the user."""


class Outfit(NamedTuple):
    """An interpreter, and the folder of its programs that goes first on PATH; empty for the machine's own."""

    python: str = ""
    bin: str = ""
    variables: Dict[str, str] = {}
    written: str = PYTHON  # what stands for the interpreter in a command: the placeholder, or a path as the job has it

    def put_on(self, what: Process) -> Process:
        """The process with its interpreter filled in and its PATH led to the environment."""
        argv = [self.python, *what.argv[1:]] if what.argv[0] == self.written else what.argv
        if not self.bin:
            return replace(what, argv=argv)
        path = what.env.get("PATH") or os.environ.get("PATH", os.defpath)
        return replace(what, argv=argv, env={**self.variables, **what.env, "PATH": f"{self.bin}:{path}"})


class Outfitter:
    """One per shepherd. `lines` takes what a build prints, `waiting` what the ranks wait for meanwhile."""

    def __init__(self, task: Task, place: Place, lines: Tell, waiting: Tell) -> None:
        self._task = task
        self._place = place
        self._lines = lines
        self._waiting = waiting
        self._site: Optional[Site] = None
        self._containers: Optional[Containers] = None
        self._abandoned = False

    def fit(self, wanted: Optional[Environment]) -> Fitting:
        """What the ranks are to run in; minutes, when it must be built first. NotReady, or OSError from the disk."""
        if wanted is None:
            return Outfit()
        if wanted.kind == "path":
            outfit = _of_path(Path(wanted.path))._replace(written=wanted.path)
            _check_age(outfit.python, wanted)
            return outfit
        if wanted.kind in ("preset", "file"):
            return _of_prefix(self._the_site().folder_of(wanted))
        if wanted.kind == "image":
            return self._contained(wanted)
        raise NotReady(f"environment {wanted.name} is of a kind this node does not know ({wanted.kind})")

    def abandon(self) -> None:
        """Nobody will start any more: ends a build that is under way. Any thread, harmless when called twice."""
        self._abandoned = True
        if self._site is not None:
            self._site.abandon()

    def tidy(self) -> None:
        """Removes what containers of this gang are left."""
        if self._containers is not None:
            self._containers.remove_all()

    def _the_site(self) -> Site:
        from shoal.shepherd.building import Site  # here, because it takes milliseconds that most jobs need not wait

        if self._site is None:
            self._site = Site(self._task, self._place, self._lines, self._waiting)
        if self._abandoned:
            self._site.abandon()
        return self._site

    def _contained(self, wanted: Environment) -> Containers:
        from shoal.shepherd.container import Containers, find_program, mounts_of  # here, as above

        if self._containers is None:
            program = find_program(os.environ.get("PATH", os.defpath))
            if program is None:
                raise NotReady(
                    f"environment {wanted.name} is an image, and {self._task.node} has neither podman nor docker on "
                    "its PATH; install one of them, or name another environment"
                )
            self._the_site().pull(program, wanted)
            mounts = mounts_of(self._task, [self._place.work, self._place.folder])
            name = f"shoal-{self._task.key}"
            self._containers = Containers(program, wanted.image, mounts, str(self._place.work), name)
        return self._containers


def _of_path(path: Path) -> Outfit:
    """A prefix, when it is a folder; else an interpreter, which may lie in one."""
    if path.is_dir():
        if not (path / "bin" / "python").exists():
            raise NotReady(
                f"environment {path} is a folder without bin/python; give the folder of a virtual or conda environment"
            )
        return _of_prefix(path)
    prefix = path.parent.parent
    is_prefix = path.parent.name == "bin" and ((prefix / "pyvenv.cfg").exists() or (prefix / "conda-meta").exists())
    return _of_prefix(prefix)._replace(python=str(path)) if is_prefix else Outfit(str(path))


def _check_age(python: str, wanted: Environment) -> None:
    """One that says nothing is left to the start, which will say what is wrong with it."""
    if not wanted.oldest:
        return
    from shoal._lib import pythons  # here, because only environments that are given by their path need it

    version = pythons.version_of(python)
    if version is not None and pythons.is_older(version, wanted.oldest):
        raise NotReady(
            f"environment {wanted.name} is Python {version}, and what Shoal brings along needs Python {wanted.oldest} "
            "or newer; name a newer one, or say 'strategy: native' if the script needs nothing of Shoal"
        )


def _of_prefix(folder: Path) -> Outfit:
    variable = "CONDA_PREFIX" if (folder / "conda-meta").exists() else "VIRTUAL_ENV"
    return Outfit(str(folder / "bin" / "python"), str(folder / "bin"), {variable: str(folder)})
