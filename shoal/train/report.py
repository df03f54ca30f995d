"""What a worker tells of its progress: a line the shepherd reads, and a file of records, both at a bounded rate.

`report` only keeps the newest values; tensors become numbers when something is written, because that waits for the
device. Each record is one JSON object on a line of `metrics/<member>.jsonl` under the outputs:
time, attempt, step, epoch, samples, values, steps and seconds since the record before (compute, wait, exchange, data),
bytes (sent, received), staleness (how often which), and straggler where one is known. JSON has no NaN: it is "nan".
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from io import TextIOWrapper
from typing import Any

from torch import Tensor

from shoal.train.errors import BadModel
from shoal.train.seeing import Seeing, between
from shoal.train.tally import Tally
from shoal.train.world import World

RECORDS = 0.1  # seconds between two records, at least
LINES = 1.0  # seconds between two lines
FLUSH = 1.0  # seconds a record may stay in memory
FOLDER = "metrics"


class Reporter:
    """The reports of one worker. `heard` is told every number that was written."""

    def __init__(
        self,
        world: World,
        tally: Tally,
        seeing: Seeing,
        *,
        written: bool,
        printed: bool,
        heard: Callable[[float], None] = lambda value: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._world, self._tally, self._seeing, self._heard, self._clock = world, tally, seeing, heard, clock
        self._written, self._printed = written, printed
        self._values: dict[str, Any] = {}
        self._pending = self._unsaid = False  # newer values than the newest record, than the newest line
        self._next_record = self._next_line = self._flushed = -math.inf
        self._file: TextIOWrapper | None = None
        self._before = seeing.total()

    def __call__(self, values: Mapping[str, Any]) -> None:
        """Keeps the values, and writes when it is time."""
        for name, value in values.items():
            self._values[name] = value.detach() if type(value) is Tensor and not value.dim() else _kept(name, value)
        self._pending = self._unsaid = True
        if (self._written or self._printed) and self._clock() >= self._next_record:
            self._tell()

    def close(self) -> None:
        """Writes what was not written yet. Harmless twice."""
        if (self._pending and self._written) or (self._unsaid and self._printed):
            self._next_line = -math.inf
            self._tell()
        if self._file:
            self._file.close()
            self._file = None

    def _tell(self) -> None:
        now = self._clock()
        values = {name: _number(value) for name, value in self._values.items()}
        pending, self._pending, self._next_record = self._pending, False, now + RECORDS
        for value in values.values():
            self._heard(value)
        if self._written and pending:
            self._write(values, now)
        if self._printed and now >= self._next_line:
            self._next_line, self._unsaid = now + LINES, False
            print(line(self._tally, values), flush=True)

    def _write(self, values: Mapping[str, float], now: float) -> None:
        if self._file is None:
            folder = self._world.outputs / FOLDER
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open(folder / f"{self._world.me}.jsonl", "a", encoding="utf-8")  # noqa: SIM115
        self._file.write(json.dumps(self._record(values), separators=(",", ":")) + "\n")
        if now >= self._flushed + FLUSH:
            self._flushed = now
            self._file.flush()

    def _record(self, values: Mapping[str, float]) -> dict[str, Any]:
        after = self._seeing.total()
        spent, self._before = between(self._before, after), after
        tally, straggler = self._tally, self._seeing.straggler()
        record = {
            "time": round(time.time(), 3),
            "attempt": self._world.attempt,
            "step": tally.step,
            "epoch": tally.epoch,
            "samples": tally.samples,
            "values": {name: _plain(value) for name, value in values.items()},
            "steps": spent.steps,
            "seconds": {
                "compute": round(spent.compute, 6),
                "wait": round(spent.wait, 6),
                "exchange": round(spent.exchange, 6),
                "data": round(spent.data, 6),
            },
            "bytes": {"sent": spent.sent, "received": spent.received},
            "staleness": {str(by): count for by, count in sorted(spent.staleness.items())},
        }
        if straggler:
            record["straggler"] = {"member": straggler[0], "seconds": round(straggler[1], 6)}
        return record


def line(tally: Tally, values: Mapping[str, float]) -> str:
    """`progress 2.35/5 step=470 loss=0.25`, as the shepherd reads it."""
    done = tally.done()
    head = f"progress {done[0]:.4g}/{done[1]}" if done else "progress"
    said = [f"{name}={_plain(value)}" for name, value in values.items()]
    return " ".join([head, f"step={tally.step}", *said])


def _kept(name: str, value: Any) -> Any:
    """The value without what would keep a graph alive; refused when it cannot become one number."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise BadModel(f"report({name}=…) was given a tensor of shape {tuple(value.shape)}: report its mean()")
        return value.detach()
    if isinstance(value, (int, float)):
        return value
    try:
        return float(value)
    except (TypeError, ValueError):
        raise BadModel(
            f"report({name}=…) was given a {type(value).__name__}, which is not a number: report numbers"
        ) from None


def _number(value: Any) -> float:
    return float(value.item()) if isinstance(value, Tensor) else float(value)


def _plain(value: float) -> Any:
    if not math.isfinite(value):
        return str(value)
    return int(value) if value.is_integer() and abs(value) < 1e15 else float(f"{value:.9g}")
