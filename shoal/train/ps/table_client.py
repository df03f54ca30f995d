"""A worker's end of a sparse table: rows by number from whichever server has them, gradients back, exactly once.

In a world of one the table lies in this process, in the same `Rows`, so that a script behaves alike with and without
servers.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from shoal.train.checkpoint import tensors
from shoal.train.errors import PeerLost, WaitedTooLong
from shoal.train.ps.counterpart import DEFAULT_PATIENCE, NOTICE, PATIENCE
from shoal.train.ps.rows import Rows, TableInfo
from shoal.train.ps.table import SERVICE
from shoal.train.ps.table_snapshots import write_part
from shoal.train.seeing import EXCHANGE, Seeing
from shoal.train.wire.link import Link, Pending, Reply
from shoal.train.world import Peer, World

_log = logging.getLogger("shoal.train")


class Table(Protocol):
    """Where an embedding reads and sends its rows."""

    def pull(self, rows: Tensor, training: bool) -> Tensor: ...

    def push(self, rows: Tensor, grads: Tensor, hyper: Mapping[str, float]) -> None: ...

    def save(self, folder: Path) -> list[str]: ...

    def load(self, folder: Path) -> None: ...

    def facts(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


class Remote:
    """A table on servers."""

    def __init__(self, info: TableInfo, world: World, seeing: Seeing) -> None:
        self.info = info
        self._world, self._seeing = world, seeing
        self._servers = len(world.servers)
        self._seq = 0
        self._clock = 0
        self._versions = [0] * self._servers
        self._patience = float(world.variables.get(PATIENCE, DEFAULT_PATIENCE))
        self._links = [self._connect(peer, self._patience) for peer in world.servers]

    def pull(self, rows: Tensor, training: bool) -> Tensor:
        """The values of these rows, each once, in their order."""
        parts = self._cut(rows)
        values = torch.empty(len(rows), self.info.dim)
        buffers = [torch.empty(len(numbers), self.info.dim) for _, numbers in parts]
        asks = [
            ({"kind": "pull", "table": self.info.name, "training": training}, [_bytes(numbers)], _bytes(buffer))
            for (_, numbers), buffer in zip(parts, buffers, strict=True)
        ]
        with self._seeing.spending(EXCHANGE):
            replies = self._ask_all(asks)
        for server, ((where, _), buffer) in enumerate(zip(parts, buffers, strict=True)):
            self._versions[server] = int(replies[server].meta["version"])
            values[where] = buffer
        self._seeing.sent(8 * len(rows), values.numel() * 4)
        return values

    def push(self, rows: Tensor, grads: Tensor, hyper: Mapping[str, float]) -> None:
        """Sends the gradients of these rows; returns when the strategy lets this worker go on."""
        self._seq += 1
        self._clock += 1
        asks = []
        for server, (where, numbers) in enumerate(self._cut(rows)):
            meta = {
                "kind": "push", "table": self.info.name, "seq": self._seq, "base": self._versions[server],
                "clock": self._clock, "hyper": dict(hyper),
            }  # fmt: skip
            asks.append((meta, [_bytes(numbers), _bytes(grads[where].contiguous())], None))
        with self._seeing.waiting_for(f"table {self.info.name!r}, step {self._clock}: its servers"):
            for server, reply in enumerate(self._ask_all(asks)):
                self._versions[server] = int(reply.meta["version"])
                self._seeing.stale(int(reply.meta["staleness"]))
        self._seeing.sent(grads.numel() * 4 + 8 * len(rows))

    def save(self, folder: Path) -> list[str]:
        """Every server writes its part into the folder; the names of the files."""
        replies = self._ask_all(self._same({"kind": "save", "table": self.info.name, "folder": str(folder)}))
        return [str(reply.meta["file"]) for reply in replies]

    def load(self, folder: Path) -> None:
        """Every server reads its rows of all parts, however many servers wrote them: one worker asks for it, the others
        return when it is done."""
        kind = "load" if self._world.rank == 0 else "loaded"
        with self._seeing.waiting_for(f"table {self.info.name!r} to be loaded: worker-0"):
            self._ask_all(self._same({"kind": kind, "table": self.info.name, "folder": str(folder)}))

    def facts(self) -> dict[str, Any]:
        told = [reply.meta["tables"][self.info.name] for reply in self._ask_all(self._same({"kind": "status"}))]
        return {"rows": sum(one["rows"] for one in told), "bytes": [one["bytes"] for one in told], "servers": told}

    def close(self) -> None:
        """Nobody waits for this worker any more. Harmless twice."""
        for link in self._links:
            link.close()

    def _same(self, meta: dict[str, Any]) -> list[tuple[dict[str, Any], list[memoryview], None]]:
        return [(meta, [], None) for _ in self._links]

    def _cut(self, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
        """For each server the places in `rows` that are its, and their numbers there."""
        if self._servers == 1:
            return [(torch.arange(len(rows)), rows)]
        owner = rows % self._servers
        places = [torch.nonzero(owner == server).flatten() for server in range(self._servers)]
        return [(where, torch.div(rows[where], self._servers, rounding_mode="floor")) for where in places]

    def _ask_all(self, asks: Sequence[tuple[dict[str, Any], list[memoryview], memoryview | None]]) -> list[Reply]:
        """Asks every server at once; one that is away is asked again when it is back, which changes nothing twice."""
        pending: list[Pending | None] = []
        for link, (meta, payload, into) in zip(self._links, asks, strict=True):
            try:
                pending.append(link.begin(meta, payload, into))
            except PeerLost:
                pending.append(None)
        return [self._finish(server, one, asks[server]) for server, one in enumerate(pending)]

    def _finish(
        self, server: int, pending: Pending | None, ask: tuple[dict[str, Any], list[memoryview], memoryview | None]
    ) -> Reply:
        until = time.monotonic() + self._patience
        while True:
            try:
                if pending is not None:
                    while not pending.ready(NOTICE):
                        self._name(server)
                    return pending.wait()
                self._links[server] = self._connect(self._world.servers[server], until - time.monotonic())
                meta, payload, into = ask
                pending = self._links[server].begin(meta, payload, into)
            except PeerLost:
                pending = None
                if time.monotonic() > until:
                    raise

    def _name(self, server: int) -> None:
        """Who is waited for, as the server knows it; asked over a link of its own, because the other one waits."""
        peer, missing = self._world.servers[server], ""
        with suppress(PeerLost, WaitedTooLong):
            link = self._call(peer, NOTICE)
            try:
                told = link.begin({"kind": "status"}).wait(NOTICE).meta["tables"][self.info.name]
                missing = ", ".join(told["waits"].get(self._world.me, ()))
            finally:
                link.close()
        self._seeing.wait_is_for(missing or peer.name)

    def _call(self, peer: Peer, deadline: float) -> Link:
        return Link.open(
            peer.host, peer.port, self._world.secret, service=SERVICE, me=self._world.me, peer=peer.name,
            deadline=max(1.0, deadline),
        )  # fmt: skip

    def _connect(self, peer: Peer, deadline: float) -> Link:
        link = self._call(peer, deadline)
        told = link.ask(
            {"kind": "open", "table": self.info.to_json(), "worker": self._world.rank, "clock": self._clock}
        ).meta
        seen = self._versions[peer.index]
        if int(told["version"]) < seen:
            lost = seen - int(told["version"])
            _log.warning("table %s came back on %s with %d updates lost", self.info.name, peer.name, lost)
        # A worker that was restarted goes on counting where its predecessor was.
        self._seq = max(self._seq, int(told["seq"])) if not self._clock else self._seq
        return link


class Local:
    """The same table in this process."""

    def __init__(self, info: TableInfo, folder: Path | None = None) -> None:
        self.info = info
        self._folder = Path(tempfile.mkdtemp(prefix="shoal-table-", dir=folder))
        self._rows = Rows(self._folder, info, 0, 1)
        self._seq = 0

    def pull(self, rows: Tensor, training: bool) -> Tensor:
        return self._rows.read(rows, training)

    def push(self, rows: Tensor, grads: Tensor, hyper: Mapping[str, float]) -> None:
        self._seq += 1
        self._rows.update(rows, grads, {0: self._seq}, hyper)

    def save(self, folder: Path) -> list[str]:
        file = folder / f"table-{self.info.name}-0-of-1{tensors.SUFFIX}"
        write_part(file, self._rows.export())
        return [file.name]

    def load(self, folder: Path) -> None:
        self._rows.take(map(tensors.read, sorted(folder.glob(f"table-{self.info.name}-*-of-*{tensors.SUFFIX}"))))

    def facts(self) -> dict[str, Any]:
        return {"rows": self._rows.used, "bytes": [self._rows.facts["bytes"]], "servers": [self._rows.facts]}

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.numpy().data.cast("B") if tensor.numel() else memoryview(b"")
