"""The ways of keeping jobs apart that this machine can show: bubblewrap everywhere it is installed, `user` for root."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MODES = ("user", "bubblewrap") if os.geteuid() == 0 else ("bubblewrap",)


@contextmanager
def reachable_folder() -> Iterator[Path]:
    """A folder that every user of the machine can enter; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-modes-"))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
