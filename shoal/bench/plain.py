"""Processes started without Shoal, for a peer: what they say is kept, and all of them are gone in the end.

They share a session of their own, as a gang of Shoal's does: kernels with autogroups share out the CPU by sessions, and
what else runs in ours would count against one side only.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

END = 20.0  # seconds between the end of the work and the end of patience
LEADER = """
import json, subprocess, sys
running = []
for line in iter(sys.stdin.readline, ""):
    running.append(subprocess.Popen(**json.loads(line), stdin=subprocess.DEVNULL))
for one in running:
    one.wait()
"""


class Crew:
    """A context whose processes share a script, an interpreter and some variables."""

    def __init__(self, python: str, script: Path, told: Mapping[str, str]) -> None:
        self.python, self.script, self._told = python, script, dict(told)
        self._ends = ExitStack()

    def start(self, *arguments: str, **variables: str) -> None:
        """`python ARGUMENTS…` with these variables besides those of the crew."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        wanted = {
            "args": [self.python, *arguments],
            "cwd": str(self.script.parent),
            "env": {**kept, **self._told, **variables},
        }
        assert self._leader.stdin is not None
        self._leader.stdin.write(json.dumps(wanted).encode() + b"\n")
        self._leader.stdin.flush()

    def said(self) -> str:
        self._output.seek(0)
        return self._output.read().decode(errors="replace")

    def __enter__(self) -> Crew:
        self._output = self._ends.enter_context(tempfile.TemporaryFile())
        self._leader = subprocess.Popen(
            [sys.executable, "-c", LEADER],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=self._output,
            start_new_session=True,
        )
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            self._leader.communicate(timeout=END)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._leader.pid, signal.SIGKILL)
            self._leader.wait()
        self._ends.close()
