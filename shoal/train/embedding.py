"""An embedding whose rows live on the parameter servers: made on first use, pulled and pushed by the rows touched.

It has no parameters of its own: the table may be larger than the memory of any worker. `run.wrap` finds it in the model
and connects it; its rows are stepped where they lie, by the sparse optimizer that goes with the wrapped one.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from shoal.train.api import Setting
from shoal.train.errors import BadModel, NotFinite
from shoal.train.ps import sparse
from shoal.train.ps.rows import TableInfo
from shoal.train.ps.table_client import Local, Remote, Table

_log = logging.getLogger("shoal.train")


class Embedding(nn.Module):
    """`train.Embedding(10_000_000, 64)`: rows by number, as `nn.Embedding`, with the table elsewhere.

    `optimizer` is sgd, adagrad or adam; left out, the one of the optimizer it is wrapped with. `lr` left out follows
    that optimizer's, also when a scheduler changes it. `admit` is how often a row must be asked for before it is kept,
    `keep` how many rows are kept at most: the least asked for go first.
    """

    def __init__(
        self,
        rows: int,
        dim: int,
        *,
        name: str | None = None,
        optimizer: str | None = None,
        lr: float | None = None,
        std: float = 0.01,
        seed: int = 0,
        admit: int = 1,
        keep: int = 0,
    ) -> None:
        super().__init__()
        for word, value, least in (("rows", rows, 1), ("dim", dim, 1), ("admit", admit, 1), ("keep", keep, 0)):
            if value < least:
                raise BadModel(f"train.Embedding with {word}={value}: it must be at least {least}")
        if optimizer is not None:
            sparse.make(optimizer, {})
        self.rows, self.dim = rows, dim
        self._name, self._optimizer, self._lr = name, optimizer, lr
        self._std, self._seed, self._admit, self._keep = std, seed, admit, keep
        self._nan = "warn"
        self._table: Table | None = None
        self._pending: list[tuple[Tensor, Tensor]] = []  # rows and values that wait for their gradients

    def forward(self, ids: Tensor) -> Tensor:
        """The rows of these ids, one more dimension than they have."""
        if ids.is_floating_point():
            raise BadModel(f"train.Embedding was given {ids.dtype}: ids are whole numbers")
        if ids.numel() and int(ids.max()) >= self.rows:
            raise BadModel(f"row {int(ids.max())} is not in a table of {self.rows} rows: take ids modulo its rows")
        rows, place = torch.unique(ids.detach().cpu().to(torch.int64), return_inverse=True)
        learning = torch.is_grad_enabled()
        values = self.table().pull(rows, training=learning and self.training).to(ids.device)
        if learning and self.training:
            values.requires_grad_()
            self._pending.append((rows, values))
        return functional.embedding(place.to(ids.device), values)

    def extra_repr(self) -> str:
        return f"{self.rows}, {self.dim}"

    def table(self) -> Table:
        """The table; before `wrap` one of this process, which `wrap` replaces."""
        if self._table is None:
            self._open(Local(self.info("table", None)))
        assert self._table is not None
        return self._table

    def info(self, name: str, optimizer: Optimizer | None) -> TableInfo:
        """What the servers are told of it."""
        kind, hyper = sparse.like(optimizer) if optimizer is not None else ("sgd", {"lr": 0.0})
        if self._optimizer is not None and self._optimizer != kind:
            kind, hyper = self._optimizer, {}
        if self._lr is not None:
            hyper = {**hyper, "lr": self._lr}
        return TableInfo(
            self._name or name, self.rows, self.dim, kind, hyper, self._std, self._seed, self._admit, self._keep
        )

    def connect(self, name: str, optimizer: Optimizer, setting: Setting) -> None:
        """Called by `wrap`: from now on the rows are the servers', or this process's in a world of one."""
        info, world = self.info(name, optimizer), setting.world
        self._nan = str(setting.options.get("nan", "warn"))
        if world.size > 1 and not world.servers:
            raise BadModel(
                f"train.Embedding {info.name!r} keeps its rows on parameter servers, and this strategy has none: take "
                "ps-async, ps-ssp, ps-softsync, ps-sync or easgd, or use nn.Embedding"
            )
        self._open(Remote(info, world, setting.seeing) if world.servers else Local(info))

    def send(self, optimizer: Optimizer) -> None:
        """Pushes the gradients of all rows that were touched since the last time; nothing touched is told too, because
        the others may wait for it."""
        pending = [(rows, values.grad) for rows, values in self._pending if values.grad is not None]
        self._pending.clear()
        rows, grads = self._checked(*_together(pending, self.dim))
        lr = self._lr if self._lr is not None else float(optimizer.param_groups[0]["lr"])
        self.table().push(rows, grads, {"lr": lr})

    def _checked(self, rows: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
        """What may be sent, by the policy for numbers that are none."""
        if self._nan == "warn" or bool(torch.isfinite(grads.sum())):
            return rows, grads
        good = torch.isfinite(grads).all(1)
        told = f"{int((~good).sum())} rows of {self} have a gradient that is not finite"
        if self._nan == "stop":
            raise NotFinite(f"{told}; lower the learning rate or clip, or go on with nan=skip or nan=warn")
        _log.warning("%s; they are skipped", told)
        return rows[good], grads[good]

    def close(self) -> None:
        if self._table is not None:
            self._table.close()

    def _open(self, table: Table) -> None:
        self.close()
        self._pending.clear()
        self._table = table
        weakref.finalize(self, table.close)


class Tables:
    """The embeddings of one wrapped model: sent at each step of its first optimizer, saved with its checkpoints."""

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer], setting: Setting) -> None:
        self.every = {name: one for name, one in model.named_modules() if isinstance(one, Embedding)}
        self._writes = setting.world.rank == 0
        if not self.every:
            return
        for name, one in self.every.items():
            one.connect(f"{setting.unit}.{name}", optimizers[0], setting)
        self._hook = optimizers[0].register_step_pre_hook(self._before)

    def save(self, folder: Path) -> list[str]:
        """One worker asks for all: the servers write their parts. The names of the files."""
        if not self._writes:
            return []
        return [file for one in self.every.values() for file in one.table().save(folder)]

    def load(self, folder: Path) -> None:
        """On every worker: none of them reads a row before they are all there."""
        for one in self.every.values():
            one.table().load(folder)

    def close(self) -> None:
        if self.every:
            self._hook.remove()
        for one in self.every.values():
            one.close()

    def _before(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        for one in self.every.values():
            one.send(optimizer)


def _together(pending: Sequence[tuple[Tensor, Tensor]], dim: int) -> tuple[Tensor, Tensor]:
    """Each row once, with the sum of its gradients."""
    if not pending:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, dim)
    every, grads = (
        torch.cat([rows for rows, _ in pending]),
        torch.cat([grad.detach().cpu().float() for _, grad in pending]),
    )
    if len(pending) == 1:
        return every, grads
    rows, place = torch.unique(every, return_inverse=True)
    return rows, torch.zeros(len(rows), dim).index_add_(0, place, grads)
