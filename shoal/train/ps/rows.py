"""The rows of one sparse table that one server holds: made on first use, found by number, dropped when seldom used.

A table of `rows` rows is cut over servers by `row % servers`; here rows go by their number within the server.
Everything lies in files of a folder in shared memory, so that a server that comes back finds it as it was. Values and
optimizer state grow slot by slot: a table takes the memory of the rows that were used, not of those it could have.

An update is all or nothing: what it will change is first put into a journal, and put back if it was cut off.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.train.errors import BadModel, Disagreement
from shoal.train.ps.sparse import SparseOptimizer, make
from shoal.train.wire.segment import Segment, reserve

MOST_ROWS = 1 << 28  # of one server: their index is one gigabyte
STEP = 32 << 20  # bytes by which values and state grow
COUNT_LIMIT = np.iinfo(np.uint16).max
SPARED = 0.9  # of the rows kept stay when room is made
HEAD = 16  # int64 fields before the table of workers
MOST_WORKERS = 4096
VERSION, USED, JOURNAL, JOURNAL_VERSION, STEPS, JOURNAL_STEPS, DROPPED, EVICTED = range(8)

# Splitmix64, Steele et al. 2014: a row's first values depend on its number alone, on whichever server it lies.
_GAMMA, _MIX_1, _MIX_2 = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True)
class TableInfo:
    """What a table is: the same on every worker and server."""

    name: str
    rows: int
    dim: int
    optimizer: str = "adagrad"
    hyper: Mapping[str, float] | None = None
    std: float = 0.01  # spread of a row's first values
    seed: int = 0
    admit: int = 1  # times a row must be asked for before it is kept
    keep: int = 0  # rows kept at most, over all servers; 0 for no bound

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def check_same(self, other: TableInfo) -> None:
        """Disagreement that names the first difference."""
        mine, theirs = self.to_json(), other.to_json()
        for key, value in mine.items():
            if key != "hyper" and value != theirs[key]:
                raise Disagreement(
                    f"table {self.name!r} has {key}={theirs[key]!r} here and {value!r} with the worker that came "
                    "first: make the same train.Embedding on every worker"
                )


class Rows:
    """One server's part of one table. Not for several threads at once."""

    def __init__(self, folder: Path, info: TableInfo, server: int, servers: int) -> None:
        """Opens what is in the folder, or begins anew. NoRoom where shared memory cannot hold the index."""
        self.info, self.server, self.servers = info, server, servers
        self.size = (info.rows - server + servers - 1) // servers
        if self.size > MOST_ROWS:
            raise BadModel(
                f"table {info.name!r} would have {self.size} rows on one server, at most {MOST_ROWS}: give more "
                "servers, or hash the ids into fewer rows"
            )
        self.most = -(-info.keep // servers) if info.keep else self.size
        self.optimizer: SparseOptimizer = make(info.optimizer, dict(info.hyper or {}))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._head = _array(folder / "head", np.int64, HEAD + MOST_WORKERS)
        self._index = _array(folder / "index", np.int32, self.size)  # slot + 1 of each row; 0 for none
        self._counts = _array(folder / "counts", np.uint16, self.size)
        self._width = info.dim * (1 + self.optimizer.states)
        self._data = _Growing(folder / "data", self.most * self._width * 4)
        self._ids = _Growing(folder / "ids", self.most * 4)
        self._journal = _Growing(folder / "journal", self.most * (self._width + 1) * 4)
        self._free: list[int] = []
        self._recover()

    # What a service asks.

    @property
    def version(self) -> int:
        return int(self._head[VERSION])

    @property
    def used(self) -> int:
        """Rows that are kept now."""
        return int(self._head[USED]) - len(self._free)

    @classmethod
    def bytes_of(cls, info: TableInfo, servers: int) -> int:
        """What one server's part may come to take, with every row it may keep."""
        most = -(-(info.keep or info.rows) // servers)
        return most * (info.dim * (1 + make(info.optimizer, {}).states) * 4 + 4) + -(-info.rows // servers) * 6

    @property
    def facts(self) -> dict[str, int]:
        dropped, evicted = int(self._head[DROPPED]), int(self._head[EVICTED])
        return {"rows": self.used, "bytes": self.used * self._width * 4, "dropped": dropped, "evicted": evicted}

    def seqs(self) -> dict[int, int]:
        """The last push taken of each worker."""
        table = self._head[HEAD:]
        return {int(worker): int(table[worker]) for worker in np.flatnonzero(table)}

    def note(self, seqs: Mapping[int, int]) -> None:
        """These pushes are in what was taken over."""
        for worker, seq in seqs.items():
            self._head[HEAD + worker] = seq

    def read(self, rows: Tensor, training: bool = True) -> Tensor:
        """The values of these rows (each once), in their order. With `training` they count as asked for, and those that
        have been often enough are kept from now on; the others show what they would begin with."""
        numbers = self._checked(rows)
        if training:
            self._counts[numbers] += self._counts[numbers] < COUNT_LIMIT
            self._admit(numbers)
        slots = self._index[numbers]
        known = slots > 0
        if known.all():
            return self._values().index_select(0, torch.from_numpy(slots.astype(np.int64) - 1))
        values = self._first(numbers)
        here = torch.from_numpy(np.flatnonzero(known))
        values[here] = self._values().index_select(0, torch.from_numpy(slots[known].astype(np.int64) - 1))
        return values

    def update(
        self,
        rows: Tensor,
        grads: Tensor,
        pushes: Mapping[int, int],
        hyper: Mapping[str, float],
        scale: float = 1.0,
    ) -> None:
        """Steps these rows (each once) by their gradients and notes the pushes they came from (worker → seq), all or
        nothing. `scale` multiplies the change of the values, not the gradient. Gradients of rows that are not kept are
        dropped, and counted."""
        numbers = self._checked(rows)
        slots = self._index[numbers]
        known = slots > 0
        if not known.all():
            self._head[DROPPED] += int((~known).sum())
            grads = grads[torch.from_numpy(known)]
            slots = slots[known]
        places = torch.from_numpy(slots.astype(np.int64) - 1)
        self._write_journal(places, pushes)
        self._head[STEPS] += 1
        touched = self._all().index_select(0, places).view(self._shape(len(places)))
        before = touched[:, 0].clone() if scale != 1.0 else None
        self.optimizer.step(touched, grads, int(self._head[STEPS]), hyper)
        if before is not None:
            touched[:, 0].sub_(before).mul_(scale).add_(before)
        self._all().index_copy_(0, places, touched.view(len(places), self._width))
        self._head[VERSION] += 1
        for worker, seq in pushes.items():
            self._head[HEAD + worker] = seq
        self._head[JOURNAL] = 0  # done: from here on the update counts

    def export(self) -> dict[str, Tensor]:
        """All that is kept: `ids` (numbers of the whole table), `data` (values and state), `counts`, `steps`."""
        slots = self._slots()
        local = self._local()[slots]
        return {
            "ids": torch.from_numpy(local.astype(np.int64) * self.servers + self.server),
            "data": self._all().index_select(0, torch.from_numpy(slots)),
            "counts": torch.from_numpy(self._counts[local].astype(np.int64)),
            "steps": torch.tensor([int(self._head[STEPS]), self.version]),
        }

    def take(self, parts: Iterable[Mapping[str, Tensor]]) -> None:
        """Becomes what was exported, by whatever number of servers: keeps its own rows of all parts."""
        self._forget_all()
        for part in parts:
            ids = part["ids"].numpy()
            mine = ids % self.servers == self.server
            numbers = ids[mine] // self.servers
            self._counts[numbers] = np.minimum(part["counts"].numpy()[mine], COUNT_LIMIT)
            slots = self._allot(numbers)
            self._all().index_copy_(0, torch.from_numpy(slots), part["data"][torch.from_numpy(mine)])
            self._index[numbers] = slots + 1
            self._head[STEPS] = max(int(self._head[STEPS]), int(part["steps"][0]))
            self._head[VERSION] = max(self.version, int(part["steps"][1]))

    # Admission and eviction.

    def _admit(self, numbers: np.ndarray[Any, Any]) -> None:
        fresh = numbers[(self._index[numbers] == 0) & (self._counts[numbers] >= self.info.admit)]
        if not len(fresh):
            return
        if self.used + len(fresh) > self.most:
            self._evict(len(fresh), numbers)
            fresh = fresh[: self.most - self.used]
        slots = self._allot(fresh)
        begin = torch.zeros(len(fresh), self._width)
        begin[:, : self.info.dim] = self._first(fresh)
        self.optimizer.begin(begin.view(self._shape(len(fresh))))
        self._all().index_copy_(0, torch.from_numpy(slots), begin)
        self._index[fresh] = slots + 1  # last of all: whoever dies before has only lost a slot, which `_recover` finds

    def _allot(self, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """A slot for each of these rows, named after it; the index does not lead there yet."""
        reused = [self._free.pop() for _ in range(min(len(self._free), len(numbers)))]
        first = int(self._head[USED])
        fresh = len(numbers) - len(reused)
        self._grow(first + fresh)
        slots = np.array([*reused, *range(first, first + fresh)], dtype=np.int64)
        self._local()[slots] = numbers
        self._head[USED] = first + fresh
        return slots

    def _evict(self, wanted: int, asked: np.ndarray[Any, Any]) -> None:
        """Makes room by dropping the rows least asked for, never those being asked for now; older counts fade."""
        slots = self._slots()
        local = self._local()[slots]
        counts = self._counts[local].astype(np.int64)
        counts[np.isin(local, asked)] = COUNT_LIMIT + 1
        going = min(max(wanted, int(self.most * (1 - SPARED))), int((counts <= COUNT_LIMIT).sum()))
        if not going:
            return
        victims = np.argpartition(counts, going - 1)[:going]
        self._index[local[victims]] = 0
        self._counts[local[victims]] = 0
        self._counts[local] >>= 1
        self._free.extend(int(slot) for slot in slots[victims])
        self._head[EVICTED] += going

    def _forget_all(self) -> None:
        self._index[:] = 0
        self._counts[:] = 0
        self._head[: HEAD + MOST_WORKERS] = 0
        self._free = []

    # Memory.

    def _checked(self, rows: Tensor) -> np.ndarray[Any, Any]:
        numbers = rows.numpy()
        if len(numbers) and (int(numbers.min()) < 0 or int(numbers.max()) >= self.size):
            worst = int(numbers.max()) if int(numbers.max()) >= self.size else int(numbers.min())
            raise BadModel(
                f"row {worst * self.servers + self.server} is not in table {self.info.name!r} of {self.info.rows} "
                "rows: make it larger, or take ids modulo its rows"
            )
        return numbers

    def _first(self, numbers: np.ndarray[Any, Any]) -> Tensor:
        """What these rows begin with: spread evenly, with the table's deviation."""
        ids = numbers.astype(np.uint64) * np.uint64(self.servers) + np.uint64(self.server)
        with np.errstate(over="ignore"):
            state = ids[:, None] * np.uint64(self.info.dim) + np.arange(self.info.dim, dtype=np.uint64)[None, :]
            state = (state + np.uint64(self.info.seed) * _MIX_1) * _GAMMA
            state = (state ^ (state >> np.uint64(30))) * _MIX_1
            state = (state ^ (state >> np.uint64(27))) * _MIX_2
            state ^= state >> np.uint64(31)
        even = (state >> np.uint64(40)).astype(np.float32) / np.float32(1 << 23) - np.float32(1)
        return torch.from_numpy(even * np.float32(self.info.std * 3**0.5))

    def _shape(self, count: int) -> tuple[int, int, int]:
        return count, 1 + self.optimizer.states, self.info.dim

    def _all(self) -> Tensor:
        return self._data.tensor(torch.float32)[: self.most * self._width].view(self.most, self._width)

    def _values(self) -> Tensor:
        return self._all()[:, : self.info.dim]

    def _local(self) -> np.ndarray[Any, Any]:
        return self._ids.tensor(torch.int32).numpy()

    def _slots(self) -> np.ndarray[Any, Any]:
        """Slots that hold a row."""
        slots = np.arange(int(self._head[USED]), dtype=np.int64)
        local = self._local()[: len(slots)]
        return slots[self._index[local] == slots + 1] if len(slots) else slots

    def _grow(self, slots: int) -> None:
        self._data.reserve(slots * self._width * 4)
        self._ids.reserve(slots * 4)

    # The journal.

    def _write_journal(self, places: Tensor, pushes: Mapping[int, int]) -> None:
        workers = sorted(pushes)
        count, note = len(places), torch.tensor([[worker, int(self._head[HEAD + worker])] for worker in workers])
        size = count * (self._width + 1) * 4
        self._journal.reserve(size + 8 * (1 + note.numel()) + 8)
        numbers = self._journal.tensor(torch.int32)
        numbers[:count] = places.to(torch.int32)
        values = self._journal.tensor(torch.float32)[count : count * (self._width + 1)].view(count, self._width)
        torch.index_select(self._all(), 0, places, out=values)
        tail = self._tail(size, 1 + note.numel())
        tail[0] = len(workers)
        tail[1:] = note.flatten()
        self._head[JOURNAL_VERSION], self._head[JOURNAL_STEPS] = self._head[VERSION], self._head[STEPS]
        self._head[JOURNAL] = count + 1  # from here on it is put back if we are cut off

    def _tail(self, offset: int, count: int) -> Tensor:
        begin = -(-offset // 8)
        return self._journal.tensor(torch.int64)[begin : begin + count]

    def _recover(self) -> None:
        """Undoes an update that was cut off, and finds the slots that hold nothing."""
        self._grow(int(self._head[USED]))
        count = int(self._head[JOURNAL]) - 1
        if count >= 0:
            size = count * (self._width + 1) * 4
            places = self._journal.tensor(torch.int32)[:count].to(torch.int64)
            values = self._journal.tensor(torch.float32)[count : count * (self._width + 1)].view(count, self._width)
            self._all().index_copy_(0, places, values)
            workers = int(self._tail(size, 1)[0])
            for worker, seq in self._tail(size, 1 + 2 * workers)[1:].view(-1, 2).tolist():
                self._head[HEAD + worker] = seq
            self._head[VERSION], self._head[STEPS] = self._head[JOURNAL_VERSION], self._head[JOURNAL_STEPS]
            self._head[JOURNAL] = 0
        held = set(self._slots().tolist())
        self._free = [slot for slot in range(int(self._head[USED])) if slot not in held]


class _Growing:
    """A file that is mapped at its full size and takes memory as it is reserved."""

    def __init__(self, path: Path, most: int) -> None:
        self.path = path
        if not path.exists():
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.ftruncate(file, -(-max(most, 1) // STEP) * STEP + STEP)
            os.close(file)
        self._segment = Segment.open(path)
        self._reserved = 0
        self._views: dict[torch.dtype, Tensor] = {}

    def reserve(self, size: int) -> None:
        """Makes the first `size` bytes real. NoRoom where there is no memory for them."""
        if size <= self._reserved:
            return
        wanted = min(-(-size // STEP) * STEP, self._segment.size)
        reserve(self.path, wanted)
        self._reserved = wanted

    def tensor(self, dtype: torch.dtype) -> Tensor:
        view = self._views.get(dtype)
        if view is None:
            view = self._views[dtype] = self._segment.tensor(dtype, 0, self._segment.size // dtype.itemsize)
        return view


def _array(path: Path, dtype: Any, count: int) -> np.ndarray[Any, Any]:
    size = count * np.dtype(dtype).itemsize
    segment = Segment.open(path) if path.exists() else Segment.create(path, size)
    return segment.array(dtype, 0, count)
