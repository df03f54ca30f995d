"""Kinds of process in a job: how many, with what, running what, and what a lost rank means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer, StrictBool

from shoal.frameworks import Leads, OnLost
from shoal.job import bounds
from shoal.job.fields import Arguments, Environment, Frozen, Labels, Resources


@dataclass(frozen=True, slots=True)
class Count:
    """How many processes: `4` or `2..8`, as many as there is room for at the start."""

    low: int
    high: int

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}..{self.high}"


def parse_count(value: Any, bound: bounds.Bound = bounds.COUNT) -> Count:
    if isinstance(value, Count):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        low = high = value
    elif isinstance(value, str):
        first, _, last = value.partition("..")
        if not (first.strip().isdigit() and (not last or last.strip().isdigit())):
            raise ValueError(f"{value!r} is not a count; write a whole number such as 4, or a range such as 2..8")
        low, high = int(first), int(last or first)
    else:
        raise ValueError(f"{value!r} is not a count; write a whole number such as 4, or a range such as 2..8")
    if low > high:
        raise ValueError(f"{value!r} is a range that ends before it begins; write the smaller number first")
    bound.check(low)
    bound.check(high)
    return Count(low, high)


def _plain_count(count: Count) -> int | str:
    return count.low if count.low == count.high else str(count)


CountField = Annotated[
    Count,
    BeforeValidator(parse_count),
    PlainSerializer(_plain_count, return_type=int | str),
    Field(json_schema_extra={"bounds": bounds.COUNT.text(), "why": bounds.COUNT.why}),
]


class RoleSpec(Frozen):
    """One entry under `roles:`; what is left out is taken from the job."""

    count: CountField = Count(1, 1)
    resources: Resources | None = None
    command: Arguments | None = None
    env: Environment = Field(default_factory=dict)
    on_lost: OnLost | None = Field(
        None,
        description="a lost rank: fail the attempt, restart the rank, or go on without it; else as the strategy bears",
    )
    apart: StrictBool = Field(False, description="never on a node that holds a process of another role of this job")
    labels: Labels = Field(default_factory=dict, description="labels a node must have")


@dataclass(frozen=True, slots=True)
class Role:
    """A role with everything filled in: what the planner, the scheduler and the launcher work with."""

    name: str
    low: int
    high: int
    resources: Resources
    command: tuple[str, ...] | None
    env: dict[str, str]
    on_lost: OnLost
    apart: bool
    labels: dict[str, str]
    leads: Leads = "all"  # whose success is the job's; the others serve them and are ended when these are done
    spare: bool = False  # with `continue`, even the last one may be lost
    ours: bool = False  # runs a process of Shoal's own unless it has a command

    @property
    def count(self) -> Count:
        return Count(self.low, self.high)
