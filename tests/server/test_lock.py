from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from shoal.server.lock import HomeLock, holder_of


def test_only_one_takes_it_and_the_file_says_who(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert holder_of(path) is None
    first, second = HomeLock(path), HomeLock(path)
    assert first.take() and first.take()
    assert holder_of(path) == os.getpid()
    assert not second.take()
    first.release()
    assert holder_of(path) is None
    assert second.take()
    second.release()


def test_it_dies_with_its_process_however_that_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import sys, pathlib; from shoal.server.lock import HomeLock; "
        "assert HomeLock(pathlib.Path(sys.argv[1])).take(); print('held', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    assert holder_of(path) == child.pid
    child.kill()
    child.communicate()
    assert holder_of(path) is None
