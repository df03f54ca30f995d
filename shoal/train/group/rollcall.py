"""Who takes part over a network: every member has a stream to every other, and says there that it arrives or leaves.

The bargain is that of `attendance`: arriving at a collective and leaving before it exclude each other and are final, so
all see the same membership; the end of a stream without a goodbye is a death, noticed at once, and raised once on every
survivor. An arrival may carry bytes: small exchanges are over with it. Members sit in *seats*: one arrival from a seat
is enough, so that several workers of one machine come as one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from shoal.train import house
from shoal.train.errors import Disagreement, PeerLost, TrainError, WaitedTooLong
from shoal.train.group import calls
from shoal.train.seeing import Seeing
from shoal.train.wire.host import Answer
from shoal.train.wire.host import Peer as Caller
from shoal.train.wire.link import Link, Pending
from shoal.train.world import World

ARRIVE, LEAVE, GIVE_UP, MESSAGE, NOTE = "arrive", "leave", "give up", "message", "note"
OK: Answer = ({"kind": "ok"}, ())


@dataclass(frozen=True)
class Arrival:
    """What a member said when it came."""

    rank: int
    sign: int
    weight: int  # how many it speaks for
    data: bytes
    when: float


class Rollcall:
    """One member's streams and what it heard. A service behind the worker's door."""

    def __init__(self, world: World, name: str, seeing: Seeing, patience: float) -> None:
        self.rank = world.rank
        self.number = 0  # of the collective, with the dead so far above it
        self._seats: list[tuple[int, ...]] = [(rank,) for rank in range(world.size)]
        self._seeing, self._patience = seeing, patience
        self._heard: dict[int, dict[int, Arrival]] = {rank: {} for rank in range(world.size)}
        self._mail: dict[int, deque[tuple[int, memoryview]]] = {rank: deque() for rank in self._heard}
        self._notes: dict[str, Any] = {}
        self._left: set[int] = set()
        self._gone: set[int] = set()
        self._told: set[int] = set()  # the dead that were raised here
        self._changed = threading.Condition()
        self._closed = False
        self._links = self._meet(world, f"group-{name}")
        self._pending: dict[int, Pending] = {}

    # -- the service ---------------------------------------------------------------------------------------------------

    def handle(self, peer: Caller, meta: Mapping[str, Any], payload: memoryview) -> Answer:
        rank, kind = _rank(peer.name), meta["kind"]
        with self._changed:
            if kind == ARRIVE:
                number, when = int(meta["number"]), self._seeing.clock()
                found = Arrival(rank, int(meta["sign"]), int(meta["weight"]), bytes(payload), when)
                self._heard[rank][number] = found
            elif kind == LEAVE and rank not in self._gone:  # who gave up before is not forgiven
                self._left.add(rank)
            elif kind == GIVE_UP:
                self._gone.add(rank)
            elif kind == MESSAGE:
                self._mail[rank].append((int(meta["sign"]), payload))
            elif kind == NOTE:
                self._notes[str(meta["name"])] = meta["value"]
            self._changed.notify_all()
        return OK

    def buffer(self, peer: Caller, meta: Mapping[str, Any], size: int) -> memoryview | None:
        return None

    def left(self, peer: Caller) -> None:
        with self._changed:
            if not self._closed and _rank(peer.name) not in self._left:
                self._gone.add(_rank(peer.name))
                self._changed.notify_all()

    # -- what a member does --------------------------------------------------------------------------------------------

    def members(self) -> tuple[int, ...]:
        with self._changed:
            return tuple(one for one in sorted(self._heard) if one not in self._left and one not in self._gone)

    def arrive(self, sign: int, weight: int = 1, data: bytes = b"") -> list[Arrival]:
        """Begins a collective. Returns who came, one for each seat that is still taken, in the order of seats."""
        self.number += 1
        number = self.number
        mine = Arrival(self.rank, sign, weight, data, self._seeing.clock())
        meta = {"kind": ARRIVE, "number": number, "sign": sign, "weight": weight}
        with self._changed:
            self._heard[self.rank][number] = mine
            present = [one for one in self._heard if one not in self._left and one not in self._gone]
        for other in present:
            self._say(other, meta, data)
        self._until(lambda: not self._missing(number), calls.words(sign), lambda: self._missing(number))
        return self._taken(number, sign)

    def stand_by(self) -> None:
        """A collective in which another one speaks for this seat: the next is this one's if that one leaves."""
        self.number += 1
        with self._changed:
            for rank, heard in self._heard.items():
                self._heard[rank] = {key: kept for key, kept in heard.items() if key >= self.number}

    def post(self, to: int, sign: int, data: memoryview) -> None:
        """A message to one member. PeerLost when it has left or died."""
        if self._is_away(to) or not self._say(to, {"kind": MESSAGE, "sign": sign}, data):
            raise _away(to)

    def take(self, source: int, sign: int) -> memoryview:
        """The next message of that member; PeerLost when none will come any more."""
        box = self._mail[source]
        self._until(lambda: bool(box) or self._is_away(source), calls.words(sign), lambda: [source], watch=False)
        if not box:
            raise _away(source)
        theirs, data = box.popleft()
        if theirs != sign:
            raise Disagreement(
                f"worker-{self.rank} expects a {calls.words(sign)} from worker-{source}, which sent a "
                f"{calls.words(theirs)}; both must name the same tensor"
            )
        return data

    def sit(self, seats: Sequence[Sequence[int]]) -> None:
        """From the next collective on, one arrival from each of these is enough. All members say it alike."""
        self._seats = [tuple(seat) for seat in seats]

    def note(self, to: Sequence[int], name: str, value: Any) -> None:
        """Tells some of the others a fact that they will read with `read`."""
        for other in to:
            self._say(other, {"kind": NOTE, "name": name, "value": value})

    def read(self, name: str, source: int) -> Any:
        """The fact of that name, once the source has told it."""
        self._until(lambda: name in self._notes, f"{name} from worker-{source}", lambda: [source])
        return self._notes[name]

    def leave(self) -> None:
        """Says goodbye to all and hangs up. Harmless twice."""
        if self._closed:
            return
        for other in self._links:
            self._say(other, {"kind": LEAVE})
        self._closed = True
        for other, link in self._links.items():
            with suppress(TrainError):
                if other in self._pending:
                    self._pending[other].wait(1.0)
            link.close()

    def give_up(self) -> None:
        """Something was raised here in the middle of a collective: nobody shall wait for the rest of it."""
        for other in self._links:
            self._say(other, {"kind": GIVE_UP})

    def check(self) -> None:
        """PeerLost when somebody has died that was not raised here yet."""
        with self._changed:
            self._raise_the_dead()

    def await_death(self, seconds: float) -> None:
        """A stream broke elsewhere: PeerLost as soon as it is known whose end that was."""
        with self._changed:
            self._changed.wait_for(self._has_news, seconds)
            self._raise_the_dead()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _meet(self, world: World, service: str) -> dict[int, Link]:
        house.serve(world, service, self)
        links = {}
        for other in self._heard:
            if other != self.rank:
                with self._seeing.waiting_for(f"meeting: worker-{other}"):
                    links[other] = house.reach(world, world.workers[other], service, self._patience)
        return links

    def _say(self, other: int, meta: dict[str, Any], data: bytes | memoryview = b"") -> bool:
        """Whether it could be said; who cannot be reached will be found dead. An answer is only waited for before the
        next word, when it has long come."""
        if other == self.rank:
            return True
        try:
            if other in self._pending:
                self._pending.pop(other).wait(self._patience)
            self._pending[other] = self._links[other].begin(meta, [data] if len(data) else ())
        except PeerLost:
            return False
        return True

    def _missing(self, number: int) -> list[int]:
        """The seats that nobody has come from, by who sits there still."""
        found = []
        for seat in self._seats:
            here = [one for one in seat if one not in self._left and one not in self._told]
            if here and not any(number in self._heard[one] for one in seat):
                found.append(here[0])
        return found

    def _taken(self, number: int, sign: int) -> list[Arrival]:
        with self._changed:
            every = [self._heard[one][number] for seat in self._seats for one in seat if number in self._heard[one]]
            for one in every:
                self._heard[one.rank] = {key: kept for key, kept in self._heard[one.rank].items() if key > number}
                self._seeing.arrivals[f"worker-{one.rank}"] = one.when
        for one in every:
            if one.sign != sign:
                raise Disagreement(
                    f"worker-{self.rank} is in {calls.words(sign)}, worker-{one.rank} in {calls.words(one.sign)}: "
                    "the calls of all workers must come in the same order; look for a branch on the rank around one"
                )
        return every

    def _until(self, done: Callable[[], bool], what: str, missing: Callable[[], list[int]], watch: bool = True) -> None:
        """Waits for what the others say, and names at any time whom it still waits for."""
        end = self._seeing.clock() + self._patience
        with self._changed:
            if done():
                return
            with self._seeing.waiting_for(what):
                while not done():
                    if watch:
                        self._raise_the_dead()
                    names = [f"worker-{one}" for one in missing()]
                    left = end - self._seeing.clock()
                    if left <= 0:
                        raise self._too_long(what, names)
                    self._seeing.waiting = f"{what}: {', '.join(names)}"
                    self._changed.wait(left)

    def _too_long(self, what: str, names: list[str]) -> WaitedTooLong:
        return WaitedTooLong(
            f"worker-{self.rank} waited {self._patience:.0f} s in {what} for {', '.join(names)}, alive but not there; "
            "see what is done there, or raise SHOAL_TRAIN_WAIT",
            names,
        )

    def _is_away(self, other: int) -> bool:
        return other in self._left or other in self._gone

    def _has_news(self) -> bool:
        return bool(self._gone - self._told)

    def _raise_the_dead(self) -> None:
        """Within `_changed`. Each of them once."""
        news = sorted(self._gone - self._told)
        if news:
            self._told.update(news)
            self.number = len(self._told) << 32
            names = [f"worker-{one}" for one in news]
            raise PeerLost(f"{', '.join(names)} died in the middle of the work; the log says why", names)


def _rank(name: str) -> int:
    return int(name.rpartition("-")[2])


def _away(other: int) -> PeerLost:
    return PeerLost(f"worker-{other} has left the group, so nothing comes from it or goes to it", [f"worker-{other}"])
