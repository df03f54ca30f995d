"""Where a rank's threads stand right now, through py-spy, as lines in its log."""

from __future__ import annotations

import os
from typing import Optional, Tuple

from shoal._lib import process

_TIMEOUT = 30.0  # seconds
_MOST = 64  # processes of one rank


def dump(pid: int, path: str) -> str:
    """What py-spy says of the process and of those it started, as far as they are Python's, or why it says nothing."""
    program = _find(path)
    if program is None:
        return "its stacks cannot be shown: py-spy is not on the rank's PATH; install it there with: pip install py-spy"
    said = [_ask(program, each) for each in [pid, *process.descendants(pid)][:_MOST]]
    shown = [text for text, _ in said if text]
    return "\n".join(shown) if shown else f"its stacks cannot be shown: {said[0][1]}"


def _ask(program: str, pid: int) -> Tuple[str, str]:
    """What it shows, and what it complains about."""
    import subprocess  # here, because hardly ever somebody asks

    try:
        done = subprocess.run([program, "dump", "--pid", str(pid)], capture_output=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    words = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return done.stdout.decode("utf-8", "replace").rstrip(), words[0] if words else "py-spy says nothing"


def _find(path: str) -> Optional[str]:
    candidates = (f"{folder}/py-spy" for folder in path.split(os.pathsep) if folder)
    return next((each for each in candidates if os.access(each, os.X_OK)), None)
