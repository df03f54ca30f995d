"""How the members of one machine find each other: each lays a board into the folder and looks for those of the others.

The meeting is over when everybody has found everybody: only then may one leave again and take its board away. A member
that finds no room says so with an empty file, and all give up together.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from shoal.train.errors import NoRoom, PeerLost, WaitedTooLong
from shoal.train.group import stripes
from shoal.train.group.board import MOST, READY, Board
from shoal.train.seeing import Seeing

LOOK = 0.002  # seconds between two looks whether the others have come
HERE, MET = 1, 2  # what a board's READY shows: its owner has come; it has found all the others


class Meeting:
    """One member's part in it."""

    def __init__(self, path: Path, rank: int, ranks: Sequence[int], seeing: Seeing, patience: float) -> None:
        if len(ranks) > MOST:
            raise NoRoom(f"{len(ranks)} workers on one machine: shared memory serves {MOST}; use more machines")
        self._path, self._rank, self._ranks = path, rank, ranks
        self._seeing, self._patience = seeing, patience
        self._boards: dict[int, Board] = {}

    def attend(self) -> dict[int, Board]:
        """Everybody's board, in the order of ranks."""
        mine = self._boards[self._rank] = self._take_seat()
        end = self._seeing.clock() + self._patience
        try:
            with self._seeing.waiting_for("meeting on this machine"):
                while missing := self._look():
                    self._seeing.waiting = f"meeting on this machine: {', '.join(missing)}"
                    if self._seeing.clock() > end:
                        raise self._too_long(missing)
                    time.sleep(LOOK)
        except BaseException:
            mine.close()
            raise
        return dict(sorted(self._boards.items()))

    def _take_seat(self) -> Board:
        try:
            board = Board.create(self._of(self._rank), stripes.size(len(self._ranks)), len(self._ranks))
        except NoRoom:
            self._refusal(self._rank).touch()  # an empty file needs no room: the others need not wait to learn of it
            raise
        board.words[READY] = HERE
        return board

    def _look(self) -> list[str]:
        """Who is still missed: first those that have not come, then those that have not found all the others."""
        for one in self._ranks:
            if one not in self._boards:
                self._look_for(one)
        missing = [one for one in self._ranks if one not in self._boards]
        if not missing:
            self._boards[self._rank].words[READY] = MET
            missing = [one for one, board in self._boards.items() if board.words[READY] < MET]
            dead = [f"worker-{one}" for one in missing if not self._boards[one].alive()]
            if dead:
                raise PeerLost(f"{', '.join(dead)} died at the meeting; the log says why", dead)
        return [f"worker-{one}" for one in missing]

    def _look_for(self, other: int) -> None:
        if self._refusal(other).exists():
            raise NoRoom(f"worker-{other} found no room for shared memory in {self._path.parent}; make it larger")
        found = Board.find(self._of(other), len(self._ranks))
        if found is not None:
            self._boards[other] = found

    def _of(self, rank: int) -> Path:
        return self._path.with_name(f"{self._path.name}-w{rank}")

    def _refusal(self, rank: int) -> Path:
        return self._path.with_name(f"{self._path.name}-w{rank}.refused")

    def _too_long(self, missing: list[str]) -> WaitedTooLong:
        return WaitedTooLong(
            f"worker-{self._rank} waited {self._patience:.0f} s in {self._path.parent} for {', '.join(missing)} to "
            "begin; see their logs, or raise SHOAL_TRAIN_WAIT",
            missing,
        )
