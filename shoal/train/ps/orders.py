"""What a rule orders, and what a shard remembers for it: the words that rules, shards and the server share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Contribution:
    """One push as it goes into an update."""

    worker: int
    seq: int
    weight: float = 1.0
    tau: int = 0
    clock: int = 0
    heads: int = 1  # workers whose gradients it is the sum of; 0 for a step that was skipped


@dataclass(frozen=True)
class Apply:
    """An update: gradient = (what is held + sum of weight * g) / divisor; the change it makes is multiplied by scale.
    The version goes up by one. With applier=elastic, scale is the elastic force."""

    contributions: tuple[Contribution, ...]
    divisor: float = 1.0
    scale: float = 1.0
    held: int = 0  # contributions that were held before and go into this update too


@dataclass(frozen=True)
class Hold:
    """Taken, but not yet applied: added to what is held, so that the worker may use its slot again."""

    contribution: Contribution


@dataclass(frozen=True)
class Drop:
    """Taken and thrown away (it came too late): it will not count, and not be taken again."""

    contribution: Contribution


@dataclass(frozen=True)
class Answer:
    """The worker may go on."""

    worker: int
    seq: int = 0  # of the push it answers; 0 for an `ask`
    tau: int = 0  # the staleness of that push
    dropped: bool = False
    released_by: int | None = None  # whose push or leaving ended the wait; None when there was none


Order = Apply | Hold | Drop | Answer


@dataclass(frozen=True)
class Resume:
    """What a shard remembers of the rule that fed it."""

    version: int = 0
    seqs: Mapping[int, int] = field(default_factory=dict)  # worker → last seq taken
    clocks: Mapping[int, int] = field(default_factory=dict)  # worker → clock, of members
    held: int = 0
    held_scale: float = 0.0  # sum of the weights of what is held
