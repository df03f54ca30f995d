"""Who takes part, and waiting for them: the members of one machine, seen through their boards.

A member *arrives* at a collective or has *left* before it, never both, and both are final, so all members see the same
membership. Who dies is raised once on every survivor (PeerLost), in the collective it is in or in the next one. The
number of the dead is the head of the sequence number, so survivors that raised in different collectives meet again at
the first one after.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence

from shoal.train.errors import Disagreement, PeerLost, WaitedTooLong
from shoal.train.group import calls
from shoal.train.group.board import AREA, ARRIVED, GAVE_UP, LEFT, SIGN, SLICE, WHEN, Board, now
from shoal.train.seeing import Seeing
from shoal.train.wire import futex

SPIN = 200  # looks at a counter before sleeping, about 0.1 µs each
YIELDS = 100  # looks where members outnumber cores, each with the core given away before the next
LONG, SHY = 0.002, 200  # seconds after which a core given away was taken by another; waits until it is tried again


class Attendance:
    """One member's view of all. `boards` holds its own too, under its rank."""

    def __init__(self, rank: int, boards: Mapping[int, Board], seeing: Seeing, patience: float) -> None:
        self.rank = rank
        self.boards = boards
        self.number = 0  # of the collective, with the dead so far above it
        self.waited = 0.0  # seconds asleep
        self.also: Callable[[], None] = lambda: None  # raises when a wait shall end for a reason from elsewhere
        self._mine = boards[rank]
        self._seeing = seeing
        self._patience = patience
        self._place = {one: index for index, one in enumerate(sorted(boards))}
        self.present = tuple(self._place)  # who has neither left nor been lost, as of the last collective
        self._gone = 0
        self._others_compute = 0  # waits for which the core is not given away
        self._crowded = len(boards) > len(os.sched_getaffinity(0))

    def members(self) -> tuple[int, ...]:
        """Who has neither left nor died, as of now."""
        return tuple(one for one in self.present if one == self.rank or self._stays(one))

    def arrive(self, sign: int, area: int = 0) -> tuple[int, ...]:
        """Begins a collective: shows that this member is there and waits for the others. Returns who takes part."""
        self.number += 1
        words, turn = self._mine.words, self.turn()
        words[SIGN + turn], words[AREA + turn], words[WHEN + turn] = sign, area, now()
        self.show(ARRIVED, self.number)
        for other in self.present:
            if other != self.rank:
                self._meet(other, sign)
        self._seeing.arrivals[_name(self.rank)] = words[WHEN + turn] / 1e9
        return self.present

    def turn(self) -> int:
        """Which of four words tells of this collective: a member may be one ahead, or one death ahead, of another."""
        return self.number >> 31 & 2 | self.number & 1

    def ticket(self, progress: int) -> int:
        """What a counter shows at that progress within this collective."""
        return self.number << 20 | progress

    def show(self, word: int, value: int) -> None:
        """Stores a word of one's own board and wakes who waits for it."""
        self._mine.words[word] = value
        self._mine.ring()

    def wait(self, other: int, word: int, value: int, sign: int) -> None:
        """Until the other's counter has come to the value. PeerLost when any member of the collective dies."""
        words = self.boards[other].words
        if words[word] < value:
            self.until(lambda: words[word] >= value, other, sign, self.present)

    def glance(self, other: int, word: int, value: int) -> bool:
        """Whether the other's counter comes to the value within a moment."""
        words = self.boards[other].words
        return self._look(lambda: words[word] >= value)

    def until(self, done: Callable[[], bool], other: int, sign: int, watch: Sequence[int]) -> None:
        """Waits for something the other shows, while those watched live."""
        if self._look(done):
            return
        began = self._seeing.clock()
        try:
            self._sleep(done, other, sign, watch)
        finally:
            self.waited += self._seeing.clock() - began

    def _look(self, done: Callable[[], bool]) -> bool:
        """For a moment. Where members outnumber cores, the core is given away meanwhile, to the one that is waited for
        as long as nobody else wants it; when another takes it for long, sleeping is better for a while: who is woken
        comes before who gave way."""
        if not self._crowded:
            return any(done() for _ in range(SPIN))
        for _ in range(0 if self._others_compute else YIELDS):
            if done():
                return True
            began = time.perf_counter()
            futex.give_way()
            if time.perf_counter() - began > LONG:
                self._others_compute = SHY
                break
        self._others_compute = max(0, self._others_compute - 1)
        return done()

    def leave(self) -> None:
        self.show(LEFT, 1)

    def give_up(self) -> None:
        """Something was raised in the middle of a collective: nobody shall wait for the rest of it."""
        self.show(GAVE_UP, self.number)

    def _meet(self, other: int, sign: int) -> None:
        words, number = self.boards[other].words, self.number
        if words[ARRIVED] < number:
            self.until(lambda: words[ARRIVED] >= number or bool(words[LEFT]), other, sign, self.present)
        if words[ARRIVED] < number:
            if words[GAVE_UP] >= number:
                raise self._lose([other])
            self.present = tuple(one for one in self.present if one != other)
        elif words[ARRIVED] >> 32 != number >> 32:
            self.check(self.present)  # the other knows of a death that is news here
            raise self._lose([other])
        elif words[SIGN + self.turn()] != sign:
            raise self._differs(other, words[SIGN + self.turn()], sign)
        self._seeing.arrivals[_name(other)] = words[WHEN + self.turn()] / 1e9

    def _sleep(self, done: Callable[[], bool], other: int, sign: int, watch: Sequence[int]) -> None:
        board, clock, what = self.boards[other], self._seeing.clock, calls.words(sign)
        began = looked = clock()
        with self._seeing.waiting_for(what), board.asleep(self._place[self.rank]):
            while True:
                self._seeing.waiting = f"{what}: {', '.join(self._missing(other))}"
                if board.sleep_unless(done):
                    return
                if clock() - looked >= SLICE:
                    self.check(watch)
                    self.also()
                    looked = clock()
                if looked - began > self._patience:
                    raise self._too_long(self._missing(other), what)

    def _missing(self, other: int) -> list[str]:
        """Who has not arrived; when all have, the one whose part is waited for."""
        late = [one for one in self.present if self.boards[one].words[ARRIVED] < self.number]
        return [_name(one) for one in late or (other,)]

    def check(self, watch: Sequence[int]) -> None:
        """PeerLost when somebody has died or given up."""
        lost = [one for one in watch if one != self.rank and self._is_lost(self.boards[one])]
        if lost:
            raise self._lose(lost)

    def _is_lost(self, board: Board) -> bool:
        gave_up = board.words[GAVE_UP] >= max(1, self.number)
        return gave_up or not (board.words[LEFT] or board.alive())

    def _stays(self, other: int) -> bool:
        return not self.boards[other].words[LEFT] and self.boards[other].alive()

    def _lose(self, lost: Sequence[int]) -> PeerLost:
        self._gone += len(lost)
        self.present = tuple(one for one in self.present if one not in lost)
        self.number = self._gone << 32
        names = [_name(one) for one in lost]
        gone = "is gone: its process" if len(names) == 1 else "are gone: their processes"
        return PeerLost(f"{', '.join(names)} {gone} ended in the middle of the work; the log says why", names)

    def _differs(self, other: int, theirs: int, mine: int) -> Disagreement:
        return Disagreement(
            f"{_name(self.rank)} is in {calls.words(mine)}, {_name(other)} in {calls.words(theirs)}: the calls of all "
            "workers must come in the same order; look for a branch on the rank around one of them"
        )

    def _too_long(self, missing: list[str], what: str) -> WaitedTooLong:
        return WaitedTooLong(
            f"{_name(self.rank)} waited {self._patience:.0f} s in {what} for {', '.join(missing)}, alive but away; "
            "see what is done there (a branch on the rank, a stuck data loader), or raise SHOAL_TRAIN_WAIT",
            missing,
        )


def _name(rank: int) -> str:
    return f"worker-{rank}"
