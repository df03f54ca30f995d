"""`python shepherd.pyz [--as UID:GID] [--drain] TASKFILE`: herds the task, or brings home what a dead shepherd left.

`--as` is for a shepherd that root starts inside a sandbox: it gives up what root has before it reads anything.
`--environment ORDERFILE` is the process that builds an environment for the shepherd that starts it.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path
from typing import List, NoReturn, Optional

from shoal._lib import process
from shoal.contract import Task
from shoal.shepherd.drain import drain
from shoal.shepherd.events import Events
from shoal.shepherd.herd import CRASHED, Herd
from shoal.shepherd.journal import Journal
from shoal.shepherd.place import Place, take_lock

_USAGE = 64
_LOCK_WITHIN = 0.5  # seconds: whoever asks "is it alive?" holds the lock for a moment


def main(argv: Optional[List[str]] = None) -> NoReturn:
    """Never returns: the threads may hang in the network, and nobody waits for them."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["--environment"] and len(words) == 2:
        from shoal.shepherd.building import build_here  # here, because a shepherd's start is waited for

        os._exit(build_here(words[1]))
    if words[:1] == ["--as"] and len(words) > 1:
        uid, _, gid = words[1].partition(":")
        process.become(int(uid), int(gid))
        words = words[2:]
    draining = words[:1] == ["--drain"]
    if len(words) != 1 + draining:
        sys.stderr.write("usage: shepherd.pyz [--as UID:GID] [--drain] TASKFILE\n")
        os._exit(_USAGE)
    task = Task.from_json(Path(words[-1]).read_text())
    os._exit(_work(task, draining))


def _work(task: Task, draining: bool) -> int:
    place = Place(task)
    journal = Journal(place.log)
    if place.done.exists() or not _locked(place, draining):
        return 0
    if place.killed.exists() and not draining:
        return 0  # killed between our start and now, before we could be seen
    try:
        # One that was killed after it had started ranks has no successor: starting them twice would be worse.
        successor = draining or Events(place.events, journal).load()
        status = drain(task, place, journal) if successor else Herd(task, place, journal).run()
        if status == 0:
            place.done.touch()
        return status
    except BaseException:
        journal.note(f"the main thread failed:\n{traceback.format_exc()}")
        return CRASHED


def _locked(place: Place, draining: bool) -> bool:
    """Takes the lock for as long as this process lives. A drain has its own, because nobody herds then."""
    handle = _patiently(place.lock)
    if handle is not None and draining:
        os.close(handle)
        handle = _patiently(place.drain_lock)
    return handle is not None


def _patiently(path: Path) -> Optional[int]:
    until = time.monotonic() + _LOCK_WITHIN
    handle = take_lock(path)
    while handle is None and time.monotonic() < until:
        time.sleep(0.02)
        handle = take_lock(path)
    return handle


if __name__ == "__main__":
    main()
