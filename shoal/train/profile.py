"""A few steps measured, then the script ends: what `shoal plan --suggest` reads to name a strategy.

`TRAIN_PROFILE=<file>[:steps]`. In a world of one, after that many steps, a JSON object is written to the file and the
script is left as by `sys.exit(0)`.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from shoal.errors import BadSpec
from shoal.train.seeing import COMPUTE, Seeing
from shoal.train.tally import Tally
from shoal.train.unit import Unit, fingerprint, parameter_bytes, trained

VARIABLE = "TRAIN_PROFILE"
STEPS = 20
SLOW = 0.95  # of the steps are quicker than the one that counts as slow
WARM_UP = 3  # steps that do not count, where there are more than twice as many


class Profile:
    """Counts the steps of a run and ends it."""

    def __init__(self, text: str, seeing: Seeing, tally: Tally) -> None:
        path, colon, steps = text.rpartition(":")
        if colon and not steps.isdigit():
            path, steps = text, str(STEPS)
        self.path, self.steps = Path(path if colon else text), int(steps) if colon else STEPS
        if self.steps < 1:
            raise BadSpec(f"{VARIABLE}={text}: the number of steps must be 1 or more; write <file>:20")
        self._seeing, self._tally = seeing, tally
        self._before = 0.0
        self._times: list[float] = []
        self._rows: list[float] = []  # rows of sparse gradients and of tables, per step
        self._looked_up = 0  # rows of tables in this step

    def stepped(self, units: Sequence[Unit]) -> None:
        """After each step of the first optimizer. SystemExit after the last one."""
        if not self._times:
            self._watch(units)
        now = self._seeing.seconds[COMPUTE] + self._seeing.seconds["data"]
        self._times.append(now - self._before)
        self._before = now
        self._rows.append(sum(_rows(unit) for unit in units) + self._looked_up)
        self._looked_up = 0
        if len(self._times) >= self.steps:
            self._write(units)
            raise SystemExit(0)

    def _watch(self, units: Sequence[Unit]) -> None:
        """Tables that live elsewhere have no gradient here: what they are asked for is counted, from step two on."""

        def count(module: nn.Module, asked: tuple[Any, ...]) -> None:
            self._looked_up += int(asked[0].unique().numel())

        for table in (one for unit in units for one in _elsewhere(unit)):
            table.register_forward_pre_hook(count)

    def _write(self, units: Sequence[Unit]) -> None:
        draft = self.path.with_name(self.path.name + ".draft")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(self.facts(units)))
        draft.replace(self.path)

    def facts(self, units: Sequence[Unit]) -> dict[str, Any]:
        times = self._times[WARM_UP:] if len(self._times) > 2 * WARM_UP else self._times
        seconds = statistics.median(times)
        tables = sum(one.rows * one.dim * 4 for unit in units for one in _elsewhere(unit))
        every = sum(parameter_bytes(unit.optimizers) for unit in units) + tables
        sparse = sum(_sparse_bytes(unit) for unit in units) + tables
        batch, rows = self._tally.batch, sum(_table_rows(unit) for unit in units)
        moved = every - sparse + (statistics.median(self._rows) * sparse / rows if rows else 0.0)
        return {
            "steps": len(self._times),
            "compute_seconds": seconds,
            "slow_seconds": sorted(times)[int(SLOW * (len(times) - 1))],
            "parameter_bytes": every,
            "sparse_rows": statistics.median(self._rows),
            "sparse_bytes": sparse,
            "touched": moved / every if every else 1.0,
            "batch": batch,
            "samples_per_second": batch / seconds if batch and seconds else None,
            "samples_per_epoch": self._tally.samples_per_epoch,
            "fingerprint": [fingerprint(unit.given) for unit in units],
        }


def _elsewhere(unit: Unit) -> list[Any]:
    """The model's `train.Embedding`s; there are none where nobody has loaded them."""
    module = sys.modules.get("shoal.train.embedding")
    return [one for one in unit.given.modules() if isinstance(one, module.Embedding)] if module else []


def _table_rows(unit: Unit) -> int:
    here = sum(int(one.weight.shape[0]) for one in _tables(unit.given))
    return here + sum(int(one.rows) for one in _elsewhere(unit))


def _tables(model: nn.Module) -> list[Any]:
    """Embeddings whose gradients name rows: a table of which a step touches a few."""
    return [one for one in model.modules() if isinstance(one, (nn.Embedding, nn.EmbeddingBag)) and one.sparse]


def _sparse_bytes(unit: Unit) -> int:
    stepped = {id(one) for optimizer in unit.optimizers for one in trained(optimizer)}
    weights: dict[int, Tensor] = {id(one.weight): one.weight for one in _tables(unit.given)}
    return sum(one.numel() * one.element_size() for key, one in weights.items() if key in stepped)


def _rows(unit: Unit) -> float:
    grads = [one.grad for optimizer in unit.optimizers for one in trained(optimizer)]
    return float(sum(grad._nnz() for grad in grads if grad is not None and grad.is_sparse))
