"""Checkpoints of a training in the outputs: the model and how the training stood, whole or not at all.

Only the first worker writes and reads; a checkpoint of another job, found in a folder that several have run in, is
none.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from shoal import contract

FOLDER = "checkpoint"


class Keeper:
    """The checkpoints of one job below `outputs`."""

    def __init__(self, outputs: Path) -> None:
        self._folder = outputs / FOLDER
        self._state = self._folder / "state.json"
        self._job = os.environ.get(contract.JOB, "")

    def save(self, model: bytes, state: dict[str, Any]) -> None:
        """The newest replaces the one before, which stays until then."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"model-{state['done']}"
        write_whole(self._folder / name, model)
        write_whole(self._state, json.dumps({**state, "job": self._job, "model": name}).encode())
        for old in self._folder.glob("model-*"):
            if old.name != name:
                old.unlink()

    def load(self) -> tuple[bytes, dict[str, Any]] | None:
        """The newest one of this job; None when there is none."""
        try:
            state = json.loads(self._state.read_text())
            if state["job"] != self._job or not self._job:
                return None
            return (self._folder / state["model"]).read_bytes(), state
        except FileNotFoundError:
            return None

    def clear(self) -> None:
        """The training is done: nobody goes on from here. Harmless twice."""
        shutil.rmtree(self._folder, ignore_errors=True)


def write_whole(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.draft")
    with open(draft, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
