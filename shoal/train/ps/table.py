"""Sparse tables behind a server: who may go on when is the strategy's rule, as for the dense parameters.

A push carries the rows touched and their gradients. Under ps-sync it waits with its worker until all have pushed, and
the mean over workers is applied; the other strategies apply it as it comes (softsync with a weight of 1/c, which is the
same sum in another order). Messages of the service "table", by meta["kind"]:

    open   {table, worker}                 → {version, seq, rows}
    pull   {table, training} + row numbers → values
    push   {table, seq, base, clock, hyper} + row numbers + gradients → {version, staleness}
    save   {table, folder}                 → {file, rows, bytes}
    load   {table, folder}                 → {rows}
    status {}                              → {tables: {name: {rows, bytes, dropped, evicted, version}}}
    leave  {}                              → {}
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.errors import BadRequest
from shoal.strategy import Strategy
from shoal.train.checkpoint import tensors
from shoal.train.checkpoint.disk import Disk, Facts
from shoal.train.errors import PeerLost
from shoal.train.ps import rules
from shoal.train.ps.rows import Rows, TableInfo
from shoal.train.ps.rules import Answer, Apply, Order
from shoal.train.wire.frames import Buffer, Meta
from shoal.train.wire.host import Peer

SERVICE = "table"
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
    pushes: dict[tuple[int, int], _Push] = field(default_factory=dict)
    answers: dict[int, Answer] = field(default_factory=dict)


class TableService:
    """The tables of one server. Implements `wire.host.Service`."""

    def __init__(self, folder: Path, server: int, servers: int, strategy: Strategy, workers: int) -> None:
        self._folder, self._server, self._servers = folder, server, servers
        self._strategy, self._workers = strategy, workers
        self._lock = threading.Lock()
        self._tables: dict[str, _Table] = {}
        self._callers: dict[int, int] = {}  # connection → worker
        self._gone: set[int] = set()  # connections that ended

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
        raise BadRequest(f"the service {SERVICE!r} has no {kind!r}; ask for open, pull, push, save, load or status")

    def buffer(self, peer: Peer, meta: Meta, size: int) -> memoryview | None:
        return None

    def left(self, peer: Peer) -> None:
        with self._lock:
            self._gone.add(peer.number)
            worker = self._callers.pop(peer.number, None)
            if worker is None or worker in self._callers.values():
                return  # it came again over another connection
            tables = list(self._tables.values())
        for table in tables:
            with table.changed:
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
        rows = Rows(self._folder / f"table-{info.name}-s{self._server}", info, self._server, self._servers)
        resume = rules.Resume(version=rows.version, seqs=rows.seqs())
        name, options = self._strategy.name, self._strategy.options
        weight = 1.0
        if name == "ps-softsync":
            weight = 1.0 / rules.quorum(options["c"], options["n"])(self._workers)
        if name in ("ps-sync", "ps-ssp", "ps-async"):
            rule = rules.make(name, options, self._workers, resume)
        else:
            rule = rules.Async(self._workers, resume=resume)
        return _Table(rows, rule, weight)

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
        scale = table.weight * order.scale / order.divisor
        rows, grads = _together([(push, one.weight * scale) for one, push in pushes])
        hyper = pushes[-1][1].hyper if pushes else {}
        table.rows.update(rows, grads, {one.worker: one.seq for one, _ in pushes}, hyper)

    def _save(self, table: _Table, folder: Path) -> Meta:
        with table.changed:
            found = table.rows.export()
        file = folder / f"table-{table.rows.info.name}-{self._server}-of-{self._servers}{tensors.SUFFIX}"
        facts = write_part(file, found)
        return {"file": file.name, "rows": len(found["ids"]), "bytes": facts.bytes, "sha256": facts.sha256}

    def _load(self, table: _Table, folder: Path) -> Meta:
        files = sorted(folder.glob(f"table-{table.rows.info.name}-*-of-*{tensors.SUFFIX}"))
        with table.changed:
            table.rows.take(map(tensors.read, files))
            table.rule.version = table.rows.version
            table.rule.seqs.clear()
            return {"rows": table.rows.used, "version": table.rows.version}

    def _find(self, name: str) -> _Table:
        with self._lock:
            table = self._tables.get(name)
        if table is None:
            raise BadRequest(f"there is no table {name!r} here yet; open it first")
        return table


def write_part(file: Path, found: Mapping[str, Tensor]) -> Facts:
    """One server's rows as a file of tensors."""
    layout = tensors.Layout.of(found)
    filled = [found[one.name].contiguous() for one in layout.entries if one.end > one.begin]
    plain = [one.numpy().data.cast("B") for one in filled]
    return Disk().write(file, [layout.header, *plain])


def _facts(table: _Table) -> dict[str, Any]:
    return {**table.rows.facts, "version": table.rows.version}


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
