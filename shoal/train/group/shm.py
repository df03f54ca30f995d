"""The group of one machine: members meet in a folder of shared memory and work on each other's pages.

`meeting` brings them together, `stripes` moves the numbers, `attendance` knows who takes part, `mailbox` carries
messages between two. What is left here is any tensor becoming flat host memory and back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.train.errors import PeerLost
from shoal.train.group import calls
from shoal.train.group.attendance import Attendance
from shoal.train.group.board import Board
from shoal.train.group.mailbox import Mailboxes
from shoal.train.group.meeting import Meeting
from shoal.train.group.staging import count, flat, give_back
from shoal.train.group.stripes import Stripes
from shoal.train.seeing import EXCHANGE, Seeing

if TYPE_CHECKING:
    from torch import Tensor

PATIENCE = 1800.0  # seconds until a member that lives but does not come is given up


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
        boards = Meeting(path, rank, ranks, seeing, patience).attend()
        return cls(rank, boards, path, seeing, patience)

    def members(self) -> tuple[int, ...]:
        return self.attendance.members()

    @property
    def present(self) -> tuple[int, ...]:
        """Who took part in the last collective."""
        return self.attendance.present

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> None:
        staged, copied = flat(tensor)
        sign = calls.sign(calls.REDUCTIONS[op], staged.dtype, count(staged))
        with self._exchanging():
            among = self._stripes.reduce(staged, op, sign)
        self._count(2 * (among - 1) * staged.nbytes // among)
        if copied:
            give_back(staged, tensor)

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        if source not in self.present:
            raise self._no_source(source)
        staged, copied = flat(tensor)
        sign = calls.sign(calls.BROADCAST, staged.dtype, count(staged), source)
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
