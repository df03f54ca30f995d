"""Environments that are built on this node, once and for all jobs: found in the cache, or built and waited for.

Building goes on in a process of its own, because the shepherd reaps every child it sees; `build_here` is that process.
It says what it does on its output, and how it ended in a file.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from shoal._lib import process, requirements
from shoal._lib.venvs import BuildFailed, Held, Recipe, Venvs
from shoal.contract import GANG, Environment, Task
from shoal.shepherd.environment import NotReady
from shoal.shepherd.place import Place

FLAG = "--environment"  # python shepherd.pyz --environment ORDERFILE
NO_ROOM = "No space left on device"  # what the server knows a full disk by
_FOLDER = "environments"  # in the node's cache folder

Tell = Callable[[str], None]


class Site:
    """One per shepherd, for its one environment, which is held for as long as the shepherd lives."""

    def __init__(self, task: Task, place: Place, lines: Tell, waiting: Tell) -> None:
        self._task = task
        self._place = place
        self._lines = lines
        self._waiting = waiting
        self._folder = Path(task.cache or Path.home() / ".cache" / "shoal") / _FOLDER
        self._held: Optional[Held] = None
        self._builder = 0  # its process id, while it builds
        self._abandoned = False

    def folder_of(self, wanted: Environment) -> Path:
        """Where the environment lies; minutes, when it must be built first. NotReady, or OSError from the disk."""
        if self._held is None:
            self._held = self._ready(wanted)
        return self._held.folder

    def abandon(self) -> None:
        """Ends a build that is under way, or that is about to begin. Any thread."""
        self._abandoned = True
        builder = self._builder
        if builder:
            for pid in [*process.descendants(builder), builder]:
                process.send(pid, signal.SIGKILL)

    def _ready(self, wanted: Environment) -> Held:
        try:
            recipe = recipe_of(wanted, self._place.work)
        except (requirements.Unreadable, ValueError) as wrong:
            raise NotReady(f"environment {wanted.name} cannot be built: {wrong}") from wrong
        cache = Venvs(self._folder, wanted.room)
        held = cache.find(recipe)
        while held is None:
            self._build(recipe, wanted)
            held = cache.find(recipe)
        return held

    def _build(self, recipe: Recipe, wanted: Environment) -> None:
        self._waiting(f"building environment {wanted.name} on {self._task.node}")
        begun = time.monotonic()
        answer = {} if self._abandoned else self._run_builder(recipe, wanted.room)
        if self._abandoned:
            raise NotReady(f"environment {wanted.name} was not built: the job was told to stop")
        if "message" in answer:
            room = f" ({NO_ROOM})" if answer["full"] and NO_ROOM not in answer["message"] else ""
            raise NotReady(f"environment {wanted.name} could not be built: {answer['message']}{room}")
        self._lines(f"{wanted.name} is ready after {time.monotonic() - begun:.1f} s")

    def _run_builder(self, recipe: Recipe, room: int) -> Dict[str, Any]:
        """How it ended: nothing on success, else `message` and `full`."""
        import subprocess  # here, because mostly nothing is to be built

        order = self._place.environment_order
        order.write_text(json.dumps({"folder": str(self._folder), "room": room, "recipe": asdict(recipe)}))
        answer = order.with_suffix(".answer")
        answer.unlink(missing_ok=True)
        last: List[str] = []
        with subprocess.Popen(
            [sys.executable, "-I", "-S", sys.argv[0], FLAG, str(order)],
            env={**os.environ, GANG: self._task.key},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=process.die_with_parent,  # noqa: PLW1509 – only a system call
        ) as builder:
            self._builder = builder.pid
            if self._abandoned:
                self.abandon()
            assert builder.stdout is not None
            for raw in builder.stdout:
                last = [*last[-4:], raw.decode("utf-8", "replace").rstrip()]
                self._lines(last[-1])
        self._builder = 0
        if not answer.exists():
            words = " ".join(last) or "nothing"
            return {"message": f"the process that built it was killed; it said last: {words}", "full": False}
        told: Dict[str, Any] = json.loads(answer.read_text())
        return told


def recipe_of(wanted: Environment, work: Path) -> Recipe:
    """What is to be built. Unreadable for a file that pip could not be told."""
    settings = dict(wanted.settings)
    if wanted.kind == "preset":
        return Recipe(
            wanted.name,
            lines=tuple(wanted.lines),
            bare=tuple(wanted.bare),
            pythons=tuple(wanted.pythons),
            settings=settings,
        )
    if not (work / wanted.path).is_file():
        raise requirements.Unreadable(f"there is no file {wanted.path} in the job's folder")
    found = requirements.read(work, wanted.path, wanted.extras)
    return Recipe(
        wanted.name,
        lines=found.lines,
        constraints=found.constraints,
        file="" if found.lines or wanted.path.endswith(".toml") else wanted.path,
        folder=str(work),
        digest=found.digest,
        specifier=found.python,
        settings=settings,
    )


def build_here(order_file: str) -> int:
    """The body of the building process: says what it does on stdout, and how it ended in a file."""
    order = json.loads(Path(order_file).read_text())
    given: Dict[str, Any] = order["recipe"]
    raw: Dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    answer: Dict[str, object] = {}
    try:
        Venvs(Path(order["folder"]), order["room"]).build(Recipe(**raw), _say)
    except BuildFailed as failed:
        answer = {"message": str(failed), "full": failed.full}
    Path(order_file).with_suffix(".answer").write_text(json.dumps(answer))
    return 0


def _say(line: str) -> None:
    print(line, flush=True)
