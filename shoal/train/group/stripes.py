"""All-reduce and broadcast through rings in shared memory, piece by piece.

The tensor is cut into stripes of one block per member; each member owns its block of every stripe. Going through the
stripes, a member *puts* the blocks that others own into its ring, *reduces* its own block from everybody's rings into
its ring of results, and *fetches* the others' results: three stages, a stripe apart, so that nobody waits for what was
only just begun. Rings are a few stripes long and stay in the cache; memory is touched once to read the tensor and once
to write it. Sums are taken in the order of ranks.

Why a slot of n may be used again without asking: a member puts stripe j + n after it fetched stripe j, so every owner
had reduced j; it reduces j + n after everybody put that one, so everybody had fetched j. And a collective begins when
all have arrived, so all have finished the one before.

Small tensors take one round: everybody shows all of its own and adds everything up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from shoal.train.group.attendance import Attendance
from shoal.train.group.board import AREA, OUT, PUT
from shoal.train.group.lanes import Lane, lane
from shoal.train.group.staging import count
from shoal.train.wire.segment import PAGE

STRIPE = 512 << 10  # bytes; two members' blocks of it fit a core's L2 beside what they are added to
MOST, LEAST_SLOTS, ALL_SLOTS = 8, 3, 16  # stripes in a ring: so many, but no more than this in all rings together
AHEAD = 2  # stripes that are put before the first of them is reduced, where the others keep pace
SMALL = 64 << 10  # bytes that go in one round
LEAST, PIECES = 64 << 10, 2  # a middling tensor is cut into so many stripes of at least so many bytes

_AREAS = PAGE  # offsets in a member's segment: two areas for small tensors, the ring, the ring of results
_RING = _AREAS + 2 * SMALL


def slots(members: int) -> int:
    """Stripes in each ring of so many members. More let a member run on while others wait for a core; but together the
    rings must stay in the cache."""
    return max(LEAST_SLOTS, min(MOST, ALL_SLOTS // members))


def size(members: int) -> int:
    """Bytes of a member's segment."""
    return _RING + slots(members) * (STRIPE + STRIPE // 2)


class Stripes:
    """The rings of all members as one member sees them. Tensors and arrays are flat and in host memory."""

    def __init__(self, attendance: Attendance) -> None:
        self._at = attendance
        self._area = 0
        self._rings: dict[Any, _Rings] = {}

    def reduce(self, whole: Any, op: str, sign: int) -> int:
        """In place, by one of `calls.REDUCTIONS`. Returns among how many."""
        rings = self._of(whole.dtype)
        if whole.nbytes <= SMALL:
            return self._reduce_at_once(rings, whole, op, sign)
        members = self._at.arrive(sign)
        if len(members) > 1:
            _Reduction(self._at, rings, whole, members, op, sign).run()
        return len(members)

    def broadcast(self, whole: Any, source: int, sign: int, gone: Callable[[int], Exception]) -> None:
        """In place. Raises what `gone` returns when the source has left meanwhile."""
        rings = self._of(whole.dtype)
        small, mine = whole.nbytes <= SMALL, source == self._at.rank
        if small and mine:
            self._area ^= 1
            rings.lane.copy(rings.area(source, self._area)[: count(whole)], rings.lane.over(whole))
        members = self._at.arrive(sign, self._area)
        if source not in members:
            raise gone(source)
        if small:
            if not mine:
                rings.lane.copy(rings.lane.over(whole), rings.area(source, self._area_of(source))[: count(whole)])
            return
        stripe = STRIPE // whole.dtype.itemsize
        pieces = [rings.lane.over(whole)[begin : begin + stripe] for begin in range(0, count(whole), stripe)]
        if mine:
            self._hand_out(rings, pieces, [one for one in members if one != source], sign)
        else:
            self._take(rings, pieces, source, sign)

    def exchange(self, mine: bytes, sign: int) -> list[bytes]:
        """Everybody's bytes, in the order of members. As many rounds as the longest takes."""
        parts: dict[int, bytearray] = {}
        step, begin, longest = SMALL - 8, 0, 1
        while begin < longest:
            members = self._show(len(mine).to_bytes(8, "little") + mine[begin : begin + step], sign)
            for one in members:
                shown = self._shown(one)
                length = int.from_bytes(shown[:8], "little")
                parts.setdefault(one, bytearray()).extend(shown[8 : 8 + max(0, min(step, length - begin))])
                longest = max(longest, length)
            begin += step
        return [bytes(parts[one]) for one in sorted(parts)]

    def _reduce_at_once(self, rings: _Rings, whole: Any, op: str, sign: int) -> int:
        piece, number = rings.lane.over(whole), count(whole)
        self._area ^= 1
        rings.lane.copy(rings.area(self._at.rank, self._area)[:number], piece)
        members = self._at.arrive(sign, self._area)
        if len(members) > 1:
            rings.combine(op, [rings.area(one, self._area_of(one))[:number] for one in members], piece)
            if op == "mean":
                rings.lane.divide(piece, len(members))
        return len(members)

    def _hand_out(self, rings: _Rings, pieces: Sequence[Any], others: Sequence[int], sign: int) -> None:
        for number, piece in enumerate(pieces):
            for other in others if number >= rings.slots else ():
                self._at.wait(other, OUT, self._at.ticket(number - rings.slots + 1), sign)
            rings.lane.copy(rings.put(self._at.rank, number)[: len(piece)], piece)
            self._at.show(PUT, self._at.ticket(number + 1))

    def _take(self, rings: _Rings, pieces: Sequence[Any], source: int, sign: int) -> None:
        for number, piece in enumerate(pieces):
            self._at.wait(source, PUT, self._at.ticket(number + 1), sign)
            rings.lane.copy(piece, rings.put(source, number)[: len(piece)])
            self._at.show(OUT, self._at.ticket(number + 1))

    def _show(self, data: bytes, sign: int) -> tuple[int, ...]:
        self._area ^= 1
        self._at.boards[self._at.rank].segment.view(_AREAS + self._area * SMALL, len(data))[:] = data
        return self._at.arrive(sign, self._area)

    def _shown(self, other: int) -> memoryview:
        return self._at.boards[other].segment.view(_AREAS + self._area_of(other) * SMALL, SMALL)

    def _area_of(self, other: int) -> int:
        return self._at.boards[other].words[AREA + self._at.turn()]

    def _of(self, dtype: Any) -> _Rings:
        if dtype not in self._rings:
            self._rings[dtype] = _Rings(self._at, lane(dtype), dtype.itemsize)
        return self._rings[dtype]


class _Rings:
    """Every member's slots as pieces of one kind of number, made once."""

    def __init__(self, attendance: Attendance, how: Lane, itemsize: int) -> None:
        self.lane = how
        self.itemsize = itemsize
        self.slots = slots(len(attendance.boards))
        stripe, small, results = STRIPE // itemsize, SMALL // itemsize, _RING + self.slots * STRIPE
        self._put: dict[int, list[Any]] = {}
        self._out: dict[int, list[Any]] = {}
        self._areas: dict[int, list[Any]] = {}
        for rank, board in attendance.boards.items():
            one = board.segment
            self._put[rank] = [how.at(one, _RING + slot * STRIPE, stripe) for slot in range(self.slots)]
            self._out[rank] = [how.at(one, results + slot * STRIPE // 2, stripe // 2) for slot in range(self.slots)]
            self._areas[rank] = [how.at(one, _AREAS + area * SMALL, small) for area in range(2)]

    def put(self, rank: int, stripe: int) -> Any:
        return self._put[rank][stripe % self.slots]

    def out(self, rank: int, stripe: int) -> Any:
        return self._out[rank][stripe % self.slots]

    def area(self, rank: int, which: int) -> Any:
        return self._areas[rank][which]

    def combine(self, op: str, pieces: Sequence[Any], out: Any) -> None:
        """In their order. A mean is a sum here."""
        how = "sum" if op == "mean" else op
        self.lane.combine(how, pieces[0], pieces[1], out)
        for piece in pieces[2:]:
            self.lane.combine(how, out, piece, out)


class _Reduction:
    """One large all-reduce under way."""

    def __init__(
        self, attendance: Attendance, rings: _Rings, whole: Any, members: Sequence[int], op: str, sign: int
    ) -> None:
        self._at, self._rings, self._members, self._sign = attendance, rings, members, sign
        self._tensor = rings.lane.over(whole)
        self._count = count(whole)
        self._place = members.index(attendance.rank)
        self._others = [one for one in members if one != attendance.rank]
        self._op, self._divisor = op, len(members) if op == "mean" else 1
        self._stripe = _stripe(self._count, rings.itemsize, len(members))
        self._number = -(-self._count // self._stripe)

    def run(self) -> None:
        """What is furthest along goes first, so that rings stay short and in the cache while all keep pace; who is
        ahead fills its ring while the others' processes do not run."""
        put = reduced = fetched = 0
        while fetched < self._number:
            late = None
            if fetched < reduced:
                late = self._late(OUT, fetched)
                if late is None:
                    self._fetch(fetched)
                    fetched += 1
                    continue
            if reduced < put:
                late_put = self._late(PUT, reduced)
                if late_put is None:
                    self._reduce(reduced)
                    reduced += 1
                    continue
                late = late or late_put
            room = put < min(self._number, fetched + self._rings.slots)
            if room and (late is None or put < reduced + AHEAD or not self._at.glance(*late)):
                self._put(put)
                put += 1
            elif late is not None:
                self._at.wait(*late, self._sign)

    def _late(self, word: int, stripe: int) -> tuple[int, int, int] | None:
        """Somebody whose counter has not come to that stripe: who, which counter, and what it must show."""
        value = self._at.ticket(stripe + 1)
        for one in self._others:
            if self._at.boards[one].words[word] < value:
                return one, word, value
        return None

    def _put(self, stripe: int) -> None:
        begin, end, block = self._cut(stripe)
        mine, ring = self._tensor[begin:end], self._rings.put(self._at.rank, stripe)[: end - begin]
        low, high = self._place * block, (self._place + 1) * block
        if low:
            self._rings.lane.copy(ring[:low], mine[:low])
        if high < end - begin:
            self._rings.lane.copy(ring[high:], mine[high:])
        self._at.show(PUT, self._at.ticket(stripe + 1))

    def _reduce(self, stripe: int) -> None:
        begin, end, block = self._cut(stripe)
        low, high = self._place * block, min((self._place + 1) * block, end - begin)
        if low < high:
            mine, out = self._tensor[begin + low : begin + high], self._rings.out(self._at.rank, stripe)[: high - low]
            theirs = [self._rings.put(one, stripe)[low:high] for one in self._others]
            # With two, the order of the sum is free: in place it takes a third less time.
            to, copy = (mine, out) if len(theirs) == 1 else (out, mine)
            self._rings.combine(self._op, [*theirs[: self._place], mine, *theirs[self._place :]], to)
            if self._divisor > 1:
                self._rings.lane.divide(to, self._divisor)
            self._rings.lane.copy(copy, to)
        self._at.show(OUT, self._at.ticket(stripe + 1))

    def _fetch(self, stripe: int) -> None:
        for low, high, other in self._blocks(stripe):
            if other != self._at.rank:
                self._rings.lane.copy(self._tensor[low:high], self._rings.out(other, stripe)[: high - low])

    def _cut(self, stripe: int) -> tuple[int, int, int]:
        """Where the stripe begins and ends, and the size of a block in it; the last one is shorter."""
        begin = stripe * self._stripe
        end = min(begin + self._stripe, self._count)
        return begin, end, -(-(end - begin) // len(self._members))

    def _blocks(self, stripe: int) -> Iterator[tuple[int, int, int]]:
        """Where each block lies and whose it is; the last blocks of the last stripe may be empty."""
        begin, end, block = self._cut(stripe)
        for place, owner in enumerate(self._members):
            low, high = begin + place * block, min(begin + (place + 1) * block, end)
            if low < high:
                yield low, high, owner


def _stripe(count: int, itemsize: int, members: int) -> int:
    """Elements of a stripe: full ones for large tensors, enough of them for the stages to overlap in middling ones."""
    size = min(STRIPE, max(LEAST, -(-count * itemsize // PIECES)))
    return max(members, size // itemsize // members * members)
