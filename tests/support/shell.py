"""What a user types, against a server of a test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.live import Live

SHOAL = (sys.executable, "-m", "shoal.cli")


def typed(live: Live, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`shoal WORDS` in a folder: its exit status, and what it said (both streams in `stdout`)."""
    environment = {**os.environ, "SHOAL_HOME": str(live.home.root)}
    return subprocess.run(
        [*SHOAL, *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
    )
