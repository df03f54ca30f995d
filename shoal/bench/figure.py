"""A figure: one number that was measured, its unit, what it must reach, and what a peer reached in the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """A bound. `unit` is that of the value: ms, MB/s, jobs/s, ×, cores, MB, s."""

    sign: str  # < ≤ ≥
    bound: float
    unit: str

    def met(self, value: float) -> bool:
        if self.sign == "<":
            return value < self.bound
        return value <= self.bound if self.sign == "≤" else value >= self.bound

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g} {self.unit}"


@dataclass(frozen=True, slots=True)
class Figure:
    """`peer` names whom the value is compared with and what they reached; `note` is for people."""

    bench: str
    value: float
    target: Target
    peer: str | None = None
    note: str = ""

    @property
    def ok(self) -> bool:
        return self.target.met(self.value)

    def to_dict(self) -> dict[str, Any]:
        return {
            "bench": self.bench,
            "value": float(f"{self.value:.4g}"),
            "unit": self.target.unit,
            "target": str(self.target),
            "peer": self.peer,
            "ok": self.ok,
        }


Bench = Callable[[], Sequence[Figure]]
