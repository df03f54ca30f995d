"""The group of one machine: members meet in a folder of shared memory and work on each other's pages.

`stripes` moves the numbers, `attendance` knows who takes part, `mailbox` carries messages between two. What is left
here is meeting, and any tensor becoming flat host memory and back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.train.errors import NoRoom, PeerLost, WaitedTooLong
from shoal.train.group import calls
from shoal.train.group.attendance import Attendance
from shoal.train.group.board import MOST, Board
from shoal.train.group.mailbox import Mailboxes
from shoal.train.group.staging import flat, give_back
from shoal.train.group.stripes import SIZE, Stripes
from shoal.train.seeing import EXCHANGE, Seeing

if TYPE_CHECKING:
    from torch import Tensor

PATIENCE = 1800.0  # seconds until a member that lives but does not come is given up
LOOK = 0.002  # seconds between two looks whether the others have come


class SharedGroup:
    """Implements `group.api.Group` for processes that share a folder on tmpfs."""

    def __init__(self, rank: int, boards: dict[int, Board], path: Path, seeing: Seeing, patience: float) -> None:
        self.rank = rank
        self.size = len(boards)
        self._boards = boards
        self._seeing = seeing
        self.attendance = Attendance(rank, boards, seeing, patience)
        self._stripes = Stripes(self.attendance)
        self._mailboxes = Mailboxes(self.attendance, path)
        self._left = False

    @classmethod
    def meet(
        cls,
        folder: Path,
        rank: int,
        ranks: Sequence[int],
        name: str = "all",
        seeing: Seeing | None = None,
        patience: float = PATIENCE,
    ) -> SharedGroup:
        """Waits until all `ranks` have come to the folder under that name. NoRoom, on all of them, when the folder
        cannot hold the rings of one; WaitedTooLong that names who did not come."""
        seeing = seeing or Seeing()
        path = folder / f"group-{name}"
        boards = _Meeting(path, rank, ranks).attend(seeing, patience)
        return cls(rank, boards, path, seeing, patience)

    def members(self) -> tuple[int, ...]:
        return self.attendance.members()

    @property
    def present(self) -> tuple[int, ...]:
        """Who took part in the last collective."""
        return self.attendance.present

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> None:
        staged, copied = flat(tensor)
        kind = calls.MEAN if op == "mean" else calls.SUM
        sign = calls.sign(kind, staged.dtype, staged.numel())
        with self._exchanging():
            among = self._stripes.reduce(staged, op == "mean", sign)
        self._count(2 * (among - 1) * staged.nbytes // among)
        if copied:
            give_back(staged, tensor)

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        if source not in self.present:
            raise self._no_source(source)
        staged, copied = flat(tensor)
        sign = calls.sign(calls.BROADCAST, staged.dtype, staged.numel(), source)
        with self._exchanging():
            self._stripes.broadcast(staged, source, sign, self._no_source)
        self._count(staged.nbytes)
        if copied and source != self.rank:
            give_back(staged, tensor)

    def gather(self, value: Any) -> list[Any]:
        data = json.dumps(value, separators=(",", ":")).encode()
        with self._exchanging():
            return [json.loads(one) for one in self._stripes.exchange(data, calls.sign(calls.GATHER))]

    def send(self, to: int, tensor: Tensor) -> None:
        self._mailboxes.send(to, flat(tensor)[0])
        self._seeing.sent(tensor.nbytes)

    def receive(self, source: int, out: Tensor) -> None:
        staged, copied = flat(out)
        self._mailboxes.receive(source, staged)
        self._seeing.sent(0, staged.nbytes)
        if copied:
            give_back(staged, out)

    def leave(self) -> None:
        if self._left:
            return
        self._left = True
        self.attendance.leave()
        self._mailboxes.close()
        for board in self._boards.values():
            board.close()

    @contextmanager
    def _exchanging(self) -> Iterator[None]:
        """Counts the time as exchange, less what was waited; and lets nobody wait for a member that failed half-way."""
        began, waited = self._seeing.clock(), self.attendance.waited
        try:
            yield
        except PeerLost:
            raise
        except BaseException:
            self.attendance.give_up()
            raise
        finally:
            spent = self._seeing.clock() - began - (self.attendance.waited - waited)
            with self._seeing.lock:
                self._seeing.seconds[EXCHANGE] += spent

    def _no_source(self, source: int) -> PeerLost:
        self.attendance.also()  # perhaps the source itself left because of another's death
        return PeerLost(f"worker-{source} is no longer here, so it cannot be the source", [f"worker-{source}"])

    def _count(self, moved: int) -> None:
        self._seeing.sent(moved, moved)


class _Meeting:
    """All members finding each other's boards."""

    def __init__(self, path: Path, rank: int, ranks: Sequence[int]) -> None:
        if len(ranks) > MOST:
            raise NoRoom(f"{len(ranks)} workers on one machine: shared memory serves {MOST}; use more machines")
        self._path = path
        self._rank = rank
        self._ranks = ranks

    def attend(self, seeing: Seeing, patience: float) -> dict[int, Board]:
        boards = {self._rank: self._take_seat()}
        deadline = seeing.clock() + patience
        while missing := [f"worker-{one}" for one in self._ranks if one not in boards]:
            with seeing.waiting_for(f"meeting on this machine: {', '.join(missing)}"):
                if not self._look(boards):
                    time.sleep(LOOK)
            if seeing.clock() > deadline:
                raise WaitedTooLong(
                    f"worker-{self._rank} waited {patience:.0f} s in {self._path.parent} for {', '.join(missing)} to "
                    "begin; see their logs, or raise SHOAL_TRAIN_WAIT",
                    missing,
                )
        return dict(sorted(boards.items()))

    def _take_seat(self) -> Board:
        try:
            return Board.create(self._of(self._rank), SIZE, len(self._ranks))
        except NoRoom:
            self._refusal(self._rank).touch()  # an empty file needs no room: the others need not wait to learn of it
            raise

    def _look(self, boards: dict[int, Board]) -> bool:
        """Whether another one has come."""
        before = len(boards)
        for one in self._ranks:
            if one not in boards:
                if self._refusal(one).exists():
                    raise NoRoom(f"worker-{one} found no room for shared memory in {self._path.parent}; make it larger")
                found = Board.find(self._of(one), len(self._ranks))
                if found is not None:
                    boards[one] = found
        return len(boards) > before

    def _of(self, rank: int) -> Path:
        return self._path.with_name(f"{self._path.name}-w{rank}")

    def _refusal(self, rank: int) -> Path:
        return self._path.with_name(f"{self._path.name}-w{rank}.refused")
