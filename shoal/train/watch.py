"""A thread that looks at how long the worker has been waiting, and says so: for what, for whom, and where both stand.

After SHOAL_TRAIN_NOTICE seconds of one wait it logs its name and the stacks of this process. Workers of one node also
learn where the missing ones are: a note in the shared folder asks, and each one's watcher answers with its own stack.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path

from shoal.train.seeing import Seeing
from shoal.train.world import World

NOTICE = "SHOAL_TRAIN_NOTICE"
DEFAULT_NOTICE = 30.0  # seconds
LOOK = 1.0  # seconds between two looks, at most
_MEMBER = re.compile(r"worker-\d+")

_log = logging.getLogger("shoal.train")


class Watch:
    """Started with the run, ended with it. Holds nothing up: it only looks."""

    def __init__(self, world: World, seeing: Seeing, notice: float | None = None) -> None:
        self._world, self._seeing = world, seeing
        self._notice = float(world.variables.get(NOTICE, DEFAULT_NOTICE)) if notice is None else notice
        self._said: tuple[float, float] = (-1.0, 0.0)  # the wait that was told of, and after how many seconds next
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shoal-watch-waits", daemon=True)

    def start(self) -> None:
        if self._notice > 0:
            self._thread.start()

    def close(self) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join(LOOK)
        self._put_away(self._note(self._world.me, "stack"))

    def look(self) -> None:
        """One look: answers who asks for this worker's stack, and tells of a wait that is too long."""
        self._answer()
        what, since = self._seeing.waiting, self._seeing.waiting_since
        if not what:
            return
        waited = self._seeing.clock() - since
        due = self._said[1] if self._said[0] == since else self._notice
        if waited >= due:
            self._said = (since, due * 2)
            self._tell(what, waited)

    def _run(self) -> None:
        while not self._over.wait(min(LOOK, self._notice / 4)):
            with suppress(OSError):  # the shared folder may go before we do
                self.look()

    def _tell(self, what: str, waited: float) -> None:
        missing = [name for name in _MEMBER.findall(what) if name != self._world.me]
        lines = [f"{self._world.me} has waited {waited:.0f} s for {what}"]
        for name in missing:
            self._ask(name)
            where = self._answered(name)
            if where:
                lines.append(f"{name}'s main thread is in {where}")
        lines.append(f"{self._world.me} stands here:\n{stacks()}")
        _log.warning("\n".join(lines))

    def _note(self, name: str, kind: str) -> Path | None:
        return self._world.shared / f"{kind}-{name}" if self._world.shared else None

    def _ask(self, name: str) -> None:
        note = self._note(name, "where")
        if note and any(peer.name == name and self._world.is_here(peer) for peer in self._world.workers):
            note.touch(mode=0o600)

    def _answer(self) -> None:
        asked, answer = self._note(self._world.me, "where"), self._note(self._world.me, "stack")
        if asked and answer and asked.exists():
            draft = answer.with_suffix(".draft")
            draft.write_text(place())
            draft.replace(answer)
            asked.unlink(missing_ok=True)

    def _answered(self, name: str) -> str | None:
        """What the other's watcher wrote, if it does within a few looks; nothing when even that thread is stuck."""
        note, asked = self._note(name, "stack"), self._note(name, "where")
        if not note or not asked:
            return None
        for _ in range(30):
            if note.exists() and not asked.exists():
                return note.read_text()
            if self._over.wait(LOOK / 10):
                return None
        self._put_away(asked)
        return None

    def _put_away(self, note: Path | None) -> None:
        if note:
            with suppress(OSError):
                note.unlink()


def place() -> str:
    """Where the main thread stands, innermost first: `dataset.py:88 (load), train.py:12 (<module>)`."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    frames = traceback.extract_stack(frame)[::-1][:6] if frame else []
    return ", ".join(f"{Path(one.filename).name}:{one.lineno} ({one.name})" for one in frames)


def stacks() -> str:
    """The stacks of all threads of this process but the one that asks."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            parts.append(f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)
