"""Runs the user's script as `python SCRIPT ARGS…` would, inside a process that had something to do before."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path


def run_script(arguments: Sequence[str]) -> None:
    """The script sees its own argv, its own folder first on the path, and itself as `__main__`."""
    script = Path(arguments[0])
    sys.argv = list(arguments)
    sys.path[0] = str(script.resolve().parent)
    runpy.run_path(str(script), run_name="__main__")
