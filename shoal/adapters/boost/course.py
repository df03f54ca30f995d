"""What happens after every round, on all workers alike: scores are agreed, told and kept, checkpoints are written, and
one answer says whether to go on."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from types import FrameType
from typing import Any

from shoal.adapters.boost.keeper import Keeper
from shoal.adapters.boost.scores import Patience, Score, combine
from shoal.adapters.boost.task import Task
from shoal.adapters.meeting import Meeting

LINES = 0.2  # seconds between two lines, at least; the last one always comes


class Course:
    """One training. `done` counts rounds from the first attempt on; `history` has the scores of each."""

    def __init__(self, task: Task, meeting: Meeting, keeper: Keeper) -> None:
        self.task, self.done = task, 0
        self.history: list[dict[str, float]] = []
        self.patience = Patience(task.early_stopping if task.evaluates else 0)
        self.resumed = 0  # rounds that an earlier attempt had done
        self.stopped = False  # somebody asked for it
        self.early = False  # nothing got better for long enough
        self._asked = False
        self._meeting, self._keeper = meeting, keeper
        self._next_line = -math.inf

    @property
    def best(self) -> int:
        """How many rounds the model that is kept has."""
        return self.patience.at if self.task.early_stopping and self.patience.best is not None else self.done

    def resume(self) -> bytes:
        """The model to go on from, on all workers; empty at the beginning."""
        found = self._keeper.load() if self._meeting.rank == 0 else None
        state = self._meeting.first(found[1] if found else None)
        if state is None:
            return b""
        self.done = self.resumed = int(state["done"])
        self.history = state["history"]
        self.patience = Patience(self.patience.rounds, state["best"], state["at"])
        return self._meeting.share(found[0] if found else b"")

    def listen(self) -> None:
        """From now on SIGTERM asks all workers to stop after the round. It is never taken by the thread that trains:
        LightGBM gives up when a signal interrupts a call to its peers (4.7: "Interrupted system call")."""

        def told(number: int, frame: FrameType | None) -> None:
            self._asked = True

        signal.signal(signal.SIGTERM, told)
        threading.Thread(target=threading.Event().wait, name="shoal-signals", daemon=True).start()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # threads of the framework inherit it

    def after(self, mine: Sequence[Score], model: Callable[[], bytes]) -> bool:
        """Whether this was the last round. `mine` are the scores of this worker's rows."""
        self.done += 1
        told = self._meeting.gather({"asked": self._asked, "scores": [asdict(score) for score in mine]})
        scores = combine([[Score(**score) for score in one["scores"]] for one in told])
        self.stopped = any(one["asked"] for one in told)
        self.history.append({score.name: score.value for score in scores})
        self._judge(scores)
        last = self.stopped or self.early or self.done >= self.task.rounds
        if self._meeting.rank == 0:
            self._tell(last)
            if self.stopped or (self.done % self.task.every == 0 and not last):
                self._keeper.save(model(), self._state())
        return last

    def _judge(self, scores: Sequence[Score]) -> None:
        watched = [score for score in scores if score.rows_of == "valid"]
        if watched:  # several metrics: the last one decides, as in XGBoost
            self.patience = self.patience.see(watched[-1].value, watched[-1].higher, self.done)
            self.early = self.patience.over(self.done)

    def _tell(self, last: bool) -> None:
        now = time.monotonic()
        if last or now >= self._next_line:
            self._next_line = now + LINES
            values = " ".join(f"{name}={value:.6g}" for name, value in self.history[-1].items())
            print(f"progress {self.done}/{self.task.rounds} {values}", flush=True)

    def _state(self) -> dict[str, Any]:
        return {"done": self.done, "history": self.history, "best": self.patience.best, "at": self.patience.at}
