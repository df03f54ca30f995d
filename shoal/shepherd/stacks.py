"""Where a rank's threads stand right now, through py-spy, as lines in its log."""

from __future__ import annotations

import os
from typing import Optional

_TIMEOUT = 30.0  # seconds


def dump(pid: int, path: str) -> str:
    """What py-spy says of the process, or why it cannot be asked."""
    import subprocess  # here, because hardly ever somebody asks

    program = _find(path)
    if program is None:
        return "its stacks cannot be shown: py-spy is not on the rank's PATH; install it there with: pip install py-spy"
    try:
        done = subprocess.run([program, "dump", "--pid", str(pid)], capture_output=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"its stacks cannot be shown: {error}"
    return (done.stdout + done.stderr).decode("utf-8", "replace").rstrip()


def _find(path: str) -> Optional[str]:
    candidates = (f"{folder}/py-spy" for folder in path.split(os.pathsep) if folder)
    return next((each for each in candidates if os.access(each, os.X_OK)), None)
