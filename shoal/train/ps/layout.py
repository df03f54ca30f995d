"""Which parameter lies where: the flat order of a space, cut into chunks and dealt out to servers by bytes.

A *space* is what one optimizer steps. Its parameters are put end to end, group by group, and cut into chunks of one
size; a chunk belongs to one parameter group, so hyperparameters are per chunk. Chunks go to the server with the least
to hold, in order: neighbours lie on different servers, and no server waits for the end of backward.

The **flat order** is server after server, so what one server holds is one range of it: a push or a pull is one piece
of memory. With one server it is the order of the parameters. Everything follows from names, sizes, the number of
servers and the chunk size: every worker and a recovered server compute the same.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from shoal.train.errors import BadModel

CHUNK_BYTES = 1 << 20  # of parameters: with gradient, state and journal it stays in a core's cache
LINE = 16  # elements: chunks begin on a cache line
SMALLEST = 64  # elements: a group is not cut finer than this
WIDE = ("float64",)  # kept as it is; all others are float32 on the wire and on the servers


@dataclass(frozen=True)
class ParamInfo:
    """One parameter, as every worker must have it."""

    name: str
    numel: int
    dtype: str = "float32"
    group: int = 0  # index of its parameter group in the optimizer
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} {list(self.shape) if self.shape else self.numel} {self.dtype} (group {self.group})"


@dataclass(frozen=True)
class Piece:
    """A range of one parameter and where it lies in the flat order."""

    param: int  # index in `layout.params`
    begin: int  # first element, in the parameter
    offset: int  # in the flat order
    count: int


@dataclass(frozen=True)
class Chunk:
    """What is applied at once."""

    index: int  # in its part
    group: int
    offset: int  # in the flat order
    local: int  # in its part: offset - part.offset
    count: int


@dataclass(frozen=True)
class Part:
    """What one server holds: the range [offset, offset + count) of the flat order."""

    layout: Layout
    server: int
    offset: int
    count: int
    chunks: tuple[Chunk, ...]

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """The pieces of the layout that lie here, first layers first."""
        return tuple(one for one in self.layout.pieces if self.offset <= one.offset < self.offset + self.count)

    @property
    def bytes(self) -> int:
        return self.count * self.layout.itemsize


class Layout:
    """Where every parameter of a space lies. Equal by value; the same input gives the same layout anywhere."""

    def __init__(self, params: Sequence[ParamInfo], servers: int = 1, chunk_bytes: int = CHUNK_BYTES) -> None:
        if servers < 1:
            raise ValueError(f"a layout over {servers} servers cannot be; give at least one")
        if not any(one.numel for one in params):
            raise BadModel(
                "the optimizer has no parameters to exchange (0 elements); give it some that require gradients"
            )
        self.params = tuple(params)
        self.servers = servers
        self.chunk_bytes = chunk_bytes
        self.dtype = "float64" if any(one.dtype in WIDE for one in params) else "float32"
        self.itemsize = 8 if self.dtype == "float64" else 4
        self.parts: tuple[Part, ...]
        self.pieces: tuple[Piece, ...]  # in the flat order; ranges that touch are one
        self.parts, self.pieces = _laid_out(self)

    @classmethod
    def of(cls, sizes: Iterable[ParamInfo], servers: int = 1, chunk_bytes: int = CHUNK_BYTES) -> Layout:
        return cls(tuple(sizes), servers, chunk_bytes)

    @property
    def count(self) -> int:
        """Elements of the flat order, with the few that fill up cache lines (they are zero and stay so)."""
        return self.parts[-1].offset + self.parts[-1].count

    @property
    def bytes(self) -> int:
        return self.count * self.itemsize

    def part(self, server: int) -> Part:
        return self.parts[server]

    def pieces_of(self, param: int) -> tuple[Piece, ...]:
        """Where one parameter lies, from its first element on."""
        return self._by_param[param]

    def balance(self) -> Balance:
        return Balance(tuple(part.bytes for part in self.parts))

    @cached_property
    def fingerprint(self) -> str:
        """Of the model alone: names, shapes, dtypes and groups. Equal on workers that train the same thing."""
        return hashlib.sha256(json.dumps(_listed(self.params)).encode()).hexdigest()

    @cached_property
    def hash(self) -> int:
        """Of the whole layout, servers and chunks too; fits an int64."""
        return int(hashlib.sha256(json.dumps(self.to_json()).encode()).hexdigest()[:15], 16)

    def differs(self, other: Layout) -> str | None:
        """The first parameter that is not the same in the other, in words; None when all are."""
        for index, (mine, theirs) in enumerate(zip(self.params, other.params, strict=False)):
            if mine != theirs:
                return f"parameter {index} is {mine} here and {theirs} there"
        shorter, longer = sorted((self.params, other.params), key=len)
        if len(shorter) < len(longer):
            where = "here" if longer is self.params else "there"
            return f"parameter {len(shorter)} is only {where}: {longer[len(shorter)]}"
        return None

    def to_json(self) -> dict[str, Any]:
        return {"params": _listed(self.params), "servers": self.servers, "chunk_bytes": self.chunk_bytes}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Layout:
        params = tuple(
            ParamInfo(str(name), int(numel), str(dtype), int(group), tuple(int(n) for n in shape))
            for name, numel, dtype, group, shape in data["params"]
        )
        return cls(params, int(data["servers"]), int(data["chunk_bytes"]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return self.hash

    @cached_property
    def _by_param(self) -> tuple[tuple[Piece, ...], ...]:
        found: list[list[Piece]] = [[] for _ in self.params]
        for piece in self.pieces:
            found[piece.param].append(piece)
        return tuple(tuple(sorted(pieces, key=lambda one: one.begin)) for pieces in found)


@dataclass(frozen=True)
class Balance:
    """How evenly the servers are loaded."""

    bytes: tuple[int, ...]  # by server

    @property
    def worst(self) -> float:
        """The fullest server against the mean: 1.0 is perfect."""
        return max(self.bytes) * len(self.bytes) / max(1, sum(self.bytes))


@dataclass(frozen=True)
class _Cut:
    """A range of a group's parameters put end to end."""

    group: int
    begin: int
    count: int

    @property
    def room(self) -> int:
        return _lines(self.count)


def _laid_out(layout: Layout) -> tuple[tuple[Part, ...], tuple[Piece, ...]]:
    groups = {group: _Stream(layout.params, group) for group in sorted({one.group for one in layout.params})}
    parts: list[Part] = []
    pieces: list[Piece] = []
    offset = 0
    for server, cuts in enumerate(_dealt(layout, groups)):
        chunks: list[Chunk] = []
        found: list[Piece] = []
        begin = offset
        for cut in cuts:
            chunks.append(Chunk(len(chunks), cut.group, offset, offset - begin, cut.count))
            found.extend(groups[cut.group].pieces(cut, offset))
            offset += cut.room
        parts.append(Part(layout, server, begin, offset - begin, tuple(chunks)))
        pieces.extend(_joined(found))
    return tuple(parts), tuple(pieces)


def _dealt(layout: Layout, groups: Mapping[int, _Stream]) -> list[list[_Cut]]:
    dealt: list[list[_Cut]] = [[] for _ in range(layout.servers)]
    load = [0] * layout.servers
    for group, stream in groups.items():
        for cut in _cuts(group, stream.count, layout):
            server = load.index(min(load))
            dealt[server].append(cut)
            load[server] += cut.room
    return dealt


class _Stream:
    """The parameters of a group put end to end."""

    def __init__(self, params: Sequence[ParamInfo], group: int) -> None:
        self._params = [(index, one.numel) for index, one in enumerate(params) if one.group == group and one.numel]
        self._starts = [0, *accumulate(numel for _, numel in self._params)]
        self.count = self._starts[-1]

    def pieces(self, cut: _Cut, offset: int) -> Iterator[Piece]:
        """What of the parameters lies in the cut, when the cut lies at `offset`."""
        stop = cut.begin + cut.count
        at = bisect_right(self._starts, cut.begin) - 1
        while at < len(self._params) and self._starts[at] < stop:
            index, numel = self._params[at]
            begin, end = max(cut.begin, self._starts[at]), min(stop, self._starts[at] + numel)
            yield Piece(index, begin - self._starts[at], offset + begin - cut.begin, end - begin)
            at += 1


def _cuts(group: int, count: int, layout: Layout) -> Iterator[_Cut]:
    """Equal cuts, a multiple of the servers where the group is large enough: so the balance is even."""
    rounds = max(1, -(-count * layout.itemsize // (layout.chunk_bytes * layout.servers)))
    size = max(SMALLEST, _lines(-(-count // (rounds * layout.servers))))
    for begin in range(0, count, size):
        yield _Cut(group, begin, min(size, count - begin))


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Neighbours of one parameter as one piece."""
    last: Piece | None = None
    for piece in pieces:
        if last and piece.param == last.param and piece.begin - last.begin == last.count == piece.offset - last.offset:
            last = Piece(last.param, last.begin, last.offset, last.count + piece.count)
            continue
        if last:
            yield last
        last = piece
    if last:
        yield last


def _lines(count: int) -> int:
    return -(-count // LINE) * LINE


def _listed(params: Sequence[ParamInfo]) -> list[list[Any]]:
    return [[one.name, one.numel, one.dtype, one.group, list(one.shape)] for one in params]
