"""Processes started without Shoal, for a peer: what they say is kept, and all of them are gone in the end."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

END = 20.0  # seconds between the end of the work and the end of patience


class Crew:
    """A context whose processes share a script, an interpreter and some variables."""

    def __init__(self, python: str, script: Path, told: Mapping[str, str]) -> None:
        self.python, self.script, self._told = python, script, dict(told)
        self._running: list[subprocess.Popen[bytes]] = []
        self._ends = ExitStack()

    def start(self, *arguments: str, **variables: str) -> None:
        """`python ARGUMENTS…` with these variables besides those of the crew."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        self._running.append(
            subprocess.Popen(
                [self.python, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                cwd=self.script.parent,
                env={**kept, **self._told, **variables},
            )
        )

    def said(self) -> str:
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def __enter__(self) -> Crew:
        self._output = self._ends.enter_context(tempfile.TemporaryFile())
        return self

    def __exit__(self, *raised: object) -> None:
        for one in self._running:
            try:
                one.wait(END)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
        self._ends.close()
