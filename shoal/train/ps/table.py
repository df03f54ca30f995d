"""Sparse tables behind a server: who may go on when is the strategy's rule, as for the dense parameters.

A push carries the rows touched and their gradients. Under ps-sync it waits with its worker until all have pushed, and
the mean over workers is applied; the other strategies apply it as it comes (softsync with 1/c of the change each).
Messages of the service "table", by meta["kind"]:

    open   {table, worker}                 → {version, seq, rows}
    pull   {table, training} + row numbers → values
    push   {table, seq, base, clock, hyper} + row numbers + gradients → {version, staleness}
    save   {table, folder}                 → {file, rows, bytes}
    load   {table, folder}                 → {rows, version}; nothing is loaded over rows that were trained already
    loaded {table, folder}                 → {}, once that folder was loaded here
    status {}                              → {tables: {name: {rows, bytes, dropped, evicted, version, waits}}}
    leave  {}                              → {}
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.errors import BadRequest
from shoal.strategy import Strategy
from shoal.train.checkpoint import tensors
from shoal.train.errors import PeerLost, WaitedTooLong
from shoal.train.ps import rules
from shoal.train.ps.rows import Rows, TableInfo
from shoal.train.ps.rules import Answer, Apply, Order
from shoal.train.ps.table_snapshots import TableSnapshots, with_seqs, write_part
from shoal.train.wire.frames import Buffer, Meta
from shoal.train.wire.host import Peer
from shoal.train.world import WORKER

SERVICE = "table"
LOAD_PATIENCE = 600.0  # seconds for the first worker to load a checkpoint

_log = logging.getLogger("shoal.train")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # it becomes part of the names of files


@dataclass
class _Push:
    rows: Tensor
    grads: Tensor
    hyper: dict[str, float]


@dataclass
class _Table:
    """One table: its rows, its rule, and the pushes that wait."""

    rows: Rows
    rule: rules.Rule
    weight: float
    changed: threading.Condition = field(default_factory=threading.Condition)
    loaded: str = ""  # the checkpoint it was read from
    pushes: dict[tuple[int, int], _Push] = field(default_factory=dict)
    answers: dict[int, Answer] = field(default_factory=dict)


class TableService:
    """The tables of one server. Implements `wire.host.Service`."""

    def __init__(
        self,
        folder: Path,
        server: int,
        servers: int,
        strategy: Strategy,
        workers: int,
        spill: Path | None = None,
        snapshots: TableSnapshots | None = None,
    ) -> None:
        """`spill` is a folder on disk for tables that the folder in shared memory cannot hold."""
        self._folder, self._server, self._servers, self._spill = folder, server, servers, spill
        self._strategy, self._workers = strategy, workers
        self._lock = threading.Lock()
        self._tables: dict[str, _Table] = {}
        self._callers: dict[int, int] = {}  # connection → worker
        self._gone: set[int] = set()  # connections that ended
        self._lost: frozenset[int] = frozenset()  # workers that will not come
        self._snapshots = snapshots
        if snapshots is not None:
            snapshots.start(self._frozen)

    def handle(self, peer: Peer, meta: Meta, payload: memoryview) -> tuple[Meta, Sequence[Buffer]]:
        kind = str(meta.get("kind"))
        if kind == "open":
            return self._open(peer, meta), ()
        if kind == "status":
            return {"tables": {name: _facts(table) for name, table in self._tables.items()}}, ()
        if kind == "leave":
            self.left(peer)
            return {}, ()
        table = self._find(str(meta.get("table")))
        if kind == "pull":
            return self._pull(table, meta, payload)
        if kind == "push":
            return self._push(table, peer, meta, payload), ()
        if kind == "save":
            return self._save(table, Path(meta["folder"])), ()
        if kind == "load":
            return self._load(table, Path(meta["folder"])), ()
        if kind == "loaded":
            return self._await_load(table, peer, str(meta["folder"])), ()
        raise BadRequest(f"the service {SERVICE!r} has no {kind!r}; ask for open, pull, push, save, load or status")

    def buffer(self, peer: Peer, meta: Meta, size: int) -> memoryview | None:
        return None

    def left(self, peer: Peer) -> None:
        with self._lock:
            self._gone.add(peer.number)
            worker = self._callers.pop(peer.number, None)
            if worker is None or worker in self._callers.values():
                return  # it came again over another connection
        self._leave([worker])

    def lost(self, workers: frozenset[int]) -> None:
        """These will not come (any more), also those that never called: nobody waits for them."""
        with self._lock:
            self._lost = workers
        self._leave(workers)

    def give_up_on_absent(self) -> None:
        """After a restart: members that did not call again are lost."""
        with self._lock:
            here = set(self._callers.values())
        self._leave([worker for worker in range(self._workers) if worker not in here])

    def _leave(self, workers: Iterable[int]) -> None:
        with self._lock:
            tables = list(self._tables.values())
        for table in tables:
            with table.changed:
                for worker in workers:
                    self._obey(table, table.rule.leave(worker))
                table.changed.notify_all()

    # The messages.

    def _open(self, peer: Peer, meta: Meta) -> Meta:
        info, worker = TableInfo(**meta["table"]), int(meta["worker"])
        if not NAME.fullmatch(info.name):
            raise BadRequest(f"{info.name!r} cannot be a table's name: letters, digits, '.', '_' and '-', at most 100")
        with self._lock:
            table = self._tables.get(info.name)
            if table is None:
                table = self._tables[info.name] = self._make(info)
            table.rows.info.check_same(info)
            self._callers[peer.number] = worker
        with table.changed:
            self._obey(table, table.rule.join(worker, int(meta.get("clock") or 0)))
            return {"version": table.rows.version, "seq": table.rule.seqs.get(worker, 0), "rows": table.rows.used}

    def _make(self, info: TableInfo) -> _Table:
        rows = Rows(self._home(info), info, self._server, self._servers)
        if self._snapshots is not None:
            self._snapshots.restore(rows)
        resume = rules.Resume(version=rows.version, seqs=rows.seqs())
        name, options = self._strategy.name, self._strategy.options
        weight = 1.0
        if name == "ps-softsync":
            weight = 1.0 / rules.quorum(options["c"], options["n"])(self._workers)
        if name in ("ps-sync", "ps-ssp", "ps-async"):
            rule = rules.make(name, options, self._workers, resume)
        else:
            rule = rules.Async(self._workers, resume=resume)
        for worker in self._lost:
            rule.leave(worker)
        return _Table(rows, rule, weight)

    def _home(self, info: TableInfo) -> Path:
        """Where the table lies: in shared memory, or on disk when that could not hold it once it is full."""
        name = f"table-{info.name}-s{self._server}"
        here, there = self._folder / name, (self._spill or self._folder) / name
        if here == there or here.exists():
            return here
        stat = os.statvfs(self._folder)
        room, wanted = stat.f_bavail * stat.f_frsize, Rows.bytes_of(info, self._servers)
        if wanted < room and not there.exists():
            return here
        _log.warning(
            "table %s may take %.1f GB and shared memory has %.1f GB left: it is kept on disk in %s",
            info.name, wanted / 1e9, room / 1e9, self._spill,
        )  # fmt: skip
        return there

    def _pull(self, table: _Table, meta: Meta, payload: memoryview) -> tuple[Meta, Sequence[Buffer]]:
        numbers = torch.frombuffer(payload, dtype=torch.int64) if payload.nbytes else torch.empty(0, dtype=torch.int64)
        with table.changed:
            values = table.rows.read(numbers, bool(meta.get("training", True))).contiguous()
            version = table.rows.version
        return {"version": version}, (values.numpy().data.cast("B"),) if values.numel() else ()

    def _push(self, table: _Table, peer: Peer, meta: Meta, payload: memoryview) -> Meta:
        worker, seq = self._callers[peer.number], int(meta["seq"])
        push = _unpack(meta, payload, table.rows.info.dim)
        with table.changed:
            table.answers.pop(worker, None)
            table.pushes[worker, seq] = push
            orders = table.rule.push(worker, seq, int(meta["base"]), int(meta.get("clock") or 0))
            self._obey(table, orders)
            table.changed.notify_all()
            table.changed.wait_for(lambda: worker in table.answers or peer.number in self._gone)
            if worker not in table.answers:
                raise PeerLost(f"worker-{worker} is gone", [f"worker-{worker}"])
            answer = table.answers.pop(worker)
            table.pushes.pop((worker, seq), None)
            return {"version": table.rows.version, "staleness": answer.tau, "dropped": answer.dropped}

    def _obey(self, table: _Table, orders: Sequence[Order]) -> None:
        for order in orders:
            if isinstance(order, Apply):
                self._apply(table, order)
            elif isinstance(order, Answer):
                table.answers[order.worker] = order

    def _apply(self, table: _Table, order: Apply) -> None:
        pushes = [(one, table.pushes.pop((one.worker, one.seq))) for one in order.contributions]
        rows, grads = _together([(push, one.weight / order.divisor) for one, push in pushes])
        hyper = pushes[-1][1].hyper if pushes else {}
        taken = {one.worker: one.seq for one, _ in pushes}
        table.rows.update(rows, grads, taken, hyper, scale=table.weight * order.scale)

    def _save(self, table: _Table, folder: Path) -> Meta:
        with table.changed:
            found = table.rows.export()
        file = folder / f"table-{table.rows.info.name}-{self._server}-of-{self._servers}{tensors.SUFFIX}"
        facts = write_part(file, found)
        return {"file": file.name, "rows": len(found["ids"]), "bytes": facts.bytes, "sha256": facts.sha256}

    def _load(self, table: _Table, folder: Path) -> Meta:
        files = sorted(folder.glob(f"table-{table.rows.info.name}-*-of-*{tensors.SUFFIX}"))
        with table.changed:
            if table.rows.version == 0:
                table.rows.take(map(tensors.read, files))
                table.rule.version = table.rows.version
            elif table.loaded != str(folder):
                _log.info("table %s has been trained already: %s is not loaded over it", table.rows.info.name, folder)
            table.loaded = str(folder)
            table.changed.notify_all()
            return {"rows": table.rows.used, "version": table.rows.version}

    def _await_load(self, table: _Table, peer: Peer, folder: str) -> Meta:
        """The rows of a checkpoint must be there before anybody reads them."""
        with table.changed:
            there = table.changed.wait_for(lambda: table.loaded == folder or peer.number in self._gone, LOAD_PATIENCE)
        if not there:
            raise WaitedTooLong(
                f"worker-0 has not loaded table {table.rows.info.name!r} of {folder} for {LOAD_PATIENCE:g} s; "
                "look at its log",
                ["worker-0"],
            )
        return {}

    def _frozen(self, written: Mapping[str, int]) -> Iterator[tuple[str, int, dict[str, Tensor]]]:
        """Tables that are not on disk as they are now, one by one: with their version, and what is kept."""
        with self._lock:
            tables = dict(self._tables)
        for name, table in tables.items():
            with table.changed:
                version = table.rows.version
                found = with_seqs(table.rows) if written.get(name) != version else None
            if found is not None:
                yield name, version, found

    def _find(self, name: str) -> _Table:
        with self._lock:
            table = self._tables.get(name)
        if table is None:
            raise BadRequest(f"there is no table {name!r} here yet; open it first")
        return table


def _facts(table: _Table) -> dict[str, Any]:
    with table.changed:
        waits = {
            f"{WORKER}-{one}": [f"{WORKER}-{other}" for other in others] for one, others in table.rule.waits().items()
        }
        return {**table.rows.facts, "version": table.rows.version, "waits": waits}


def _unpack(meta: Meta, payload: memoryview, dim: int) -> _Push:
    count = payload.nbytes // (8 + 4 * dim)
    if payload.nbytes != count * (8 + 4 * dim):
        raise BadRequest(f"a push of {payload.nbytes} bytes is no whole number of rows of {dim}; send it again")
    if not count:
        return _Push(torch.empty(0, dtype=torch.int64), torch.empty(0, dim), dict(meta.get("hyper") or {}))
    rows = torch.frombuffer(payload, dtype=torch.int64, count=count)
    grads = torch.frombuffer(payload, dtype=torch.float32, offset=8 * count).view(count, dim)
    return _Push(rows, grads, dict(meta.get("hyper") or {}))


def _together(parts: Sequence[tuple[_Push, float]]) -> tuple[Tensor, Tensor]:
    """Each row once, its gradients added up in the order of the parts."""
    if len(parts) == 1:
        push, weight = parts[0]
        return push.rows, push.grads if weight == 1.0 else push.grads * weight
    every = torch.cat([push.rows for push, _ in parts])
    rows, place = np.unique(every.numpy(), return_inverse=True)
    dim = parts[0][0].grads.shape[1]
    grads = torch.zeros(len(rows), dim)
    grads.index_add_(0, torch.from_numpy(place), torch.cat([push.grads * weight for push, weight in parts]))
    return torch.from_numpy(rows), grads
