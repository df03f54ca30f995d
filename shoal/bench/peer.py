"""A measurement that is a program of its own: run by the name of its module, its last JSON line taken as what it found.

What measures the training library imports torch, which nothing else here does; a peer may need another interpreter.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from shoal.bench.torchrun import check_torch
from shoal.errors import StartFailed

LIMIT = 600.0  # seconds


def run_script(
    module: str,
    *arguments: object,
    python: str = sys.executable,
    env: Mapping[str, str] | None = None,
    limit: float = LIMIT,
) -> dict[str, Any]:
    """What the program said last; StartFailed, with its words, when it failed or said nothing."""
    if python == sys.executable:
        check_torch()
    argv: Sequence[str] = [python, "-m", module, *map(str, arguments)]
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit,
        env={**os.environ, **(env or {})},
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not found:
        raise StartFailed(f"{module} left with {done.returncode} and said:\n{(done.stdout + done.stderr)[-2000:]}")
    said: dict[str, Any] = json.loads(found[-1])
    return said
