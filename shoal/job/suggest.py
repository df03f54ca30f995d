"""Which strategy a script would do best under, from a few profiled steps and the bandwidth between workers. Pure.

Costs are those of `docs/strategies.md`: n workers, M bytes of gradients, B bytes a second each way, k servers.

    all-reduce          2(n-1)M / (nB)        overlapped with backward, about two thirds of a step
    parameter server    max(M/B, nM/(kB))     twice, to push and to pull; asynchronous ones hide half of it
    local SGD           an all-reduce every H steps

A suggestion is a ranking by samples a second, each discounted by what its staleness costs in learning, with the
sentences that led to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

BACKWARD = 2 / 3  # the part of a step's computing that an overlapped exchange can hide behind
CHEAP = 0.05  # an exchange below this part of a step is not worth avoiding
SPARSE = 0.5  # a model whose rows touched in a step are below this part of it belongs on servers
UNEVEN = 1.5  # a slow step (95th percentile) this many times the median is a straggler's
LOCAL_COST = 0.03  # learning lost per doubling of the steps between two averages
STALE_COST = 0.04  # learning lost per unit of staleness
ROOM = 0.7  # the part of a worker's memory that a whole replica with its optimizer may take
REPLICA = 4  # parameters, gradients and two moments


@dataclass(frozen=True, slots=True)
class Profile:
    """What a few steps of the script in one process showed."""

    compute: float  # seconds of a step, the median
    parameter_bytes: int
    slow: float = 0.0  # seconds of the 95th percentile; 0 when not known
    touched: float = 1.0  # the part of the parameters that a step's gradients touch
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Machines:
    """Where it would run."""

    workers: int
    bandwidth: float  # bytes a second between two workers, measured
    servers: int = 1
    memory: int = 0  # bytes of each worker; 0 when not known
    cores: float = 0.0  # of all of them together; 0 when not known


@dataclass(frozen=True, slots=True)
class Candidate:
    """One strategy with what it would cost."""

    strategy: str
    step: float  # seconds
    exchange: float  # seconds of it that computing does not hide
    discount: float  # 1 for a strategy that learns as much from a sample as one process does

    @property
    def worth(self) -> float:
        """Steps a second, in those of one process that learns as well."""
        return self.discount / self.step


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The ranking, best first, and the reasoning in sentences."""

    ranking: tuple[Candidate, ...]
    reasons: tuple[str, ...]

    @property
    def best(self) -> str:
        return self.ranking[0].strategy


def suggest(profile: Profile, machines: Machines) -> Suggestion:
    """The best first; with one worker there is nothing to agree on."""
    if machines.workers == 1:
        alone = Candidate("allreduce", profile.compute, 0.0, 1.0)
        return Suggestion((alone,), ("one worker has nobody to agree with: every strategy is the plain script",))
    if _too_large(profile, machines):
        return _sharded(profile, machines)
    candidates = sorted(_candidates(profile, machines), key=lambda one: one.worth, reverse=True)
    return Suggestion(tuple(candidates), tuple(_reasons(profile, machines, candidates)))


def _too_large(profile: Profile, machines: Machines) -> bool:
    return bool(machines.memory) and profile.parameter_bytes * REPLICA > machines.memory * ROOM


def _sharded(profile: Profile, machines: Machines) -> Suggestion:
    exchange = 1.5 * _all_reduce(profile, machines)  # gathers parameters twice and scatters gradients once
    step = profile.compute + max(0.0, exchange - BACKWARD * profile.compute)
    reason = (
        f"a replica with its gradients and optimizer takes about {profile.parameter_bytes * REPLICA / 1e9:.1f} GB, "
        f"more than {ROOM:.0%} of a worker's {machines.memory / 1e9:.1f} GB: only a sharded model fits"
    )
    return Suggestion((Candidate("fsdp", step, exchange, 1.0),), (reason,))


def _candidates(profile: Profile, machines: Machines) -> Iterator[Candidate]:
    compute, n = profile.compute, machines.workers
    wait = max(0.0, profile.slow - compute) if profile.slow else 0.0  # what the slowest costs those who wait for it
    ring = _all_reduce(profile, machines)
    shown = max(0.0, ring - BACKWARD * compute)
    yield Candidate("allreduce", compute + wait + shown, shown, 1.0)
    served = _served(profile, machines)
    yield Candidate("ps-sync", compute + wait + served, served, 1.0)
    yield Candidate("ps-ssp:staleness=3", compute + wait / 4 + served / 2, served / 2, _stale(min(3, n - 1)))
    yield Candidate("ps-async", compute + served / 2, served / 2, _stale(n - 1))
    every = _every(profile, machines)
    yield Candidate(f"local-sgd:every={every}", compute + wait / every + ring / every, ring / every, _local(every))
    pair = profile.parameter_bytes / machines.bandwidth
    yield Candidate("gossip", compute + pair, pair, _stale(1.5))


def _all_reduce(profile: Profile, machines: Machines) -> float:
    n = machines.workers
    return 2 * (n - 1) * profile.parameter_bytes / (n * machines.bandwidth)


def _served(profile: Profile, machines: Machines) -> float:
    """A push and a pull. Only the rows that were touched travel where the gradients are sparse."""
    moved = profile.parameter_bytes * (profile.touched if profile.touched < SPARSE else 1.0)
    return 2 * max(moved / machines.bandwidth, machines.workers * moved / (machines.servers * machines.bandwidth))


def _every(profile: Profile, machines: Machines) -> int:
    """The fewest local steps that make the exchange cheap: a power of two from 2 to 64."""
    every = 2
    while every < 64 and _all_reduce(profile, machines) / every > CHEAP * profile.compute:
        every *= 2
    return every


def _stale(by: float) -> float:
    return 1 / (1 + STALE_COST * by)


def _local(every: int) -> float:
    return 1 / (1 + LOCAL_COST * (every.bit_length() - 1))


def _reasons(profile: Profile, machines: Machines, ranking: list[Candidate]) -> Iterator[str]:
    ring = _all_reduce(profile, machines)
    yield (
        f"a step computes for {_ms(profile.compute)} and has {profile.parameter_bytes / 1e6:.3g} MB of gradients; at "
        f"{machines.bandwidth / 1e9:.3g} GB/s an all-reduce among {machines.workers} takes {_ms(ring)}, "
        f"{ring / profile.compute:.0%} of the computing"
    )
    if ring <= CHEAP * profile.compute:
        yield "that is cheap: averaging every step costs next to nothing and learns as one process would"
    elif ring <= BACKWARD * profile.compute:
        yield "most of it hides behind backward, which sends each bucket as soon as it is ready"
    else:
        yield "it does not hide behind backward: exchanging less often, or without waiting, pays"
    if profile.touched < SPARSE:
        yield (
            f"a step touches only {profile.touched:.1%} of the parameters: rows on servers (train.Embedding) move that "
            "much and no more"
        )
    if profile.slow > UNEVEN * profile.compute:
        yield (
            f"steps are uneven (one in twenty takes {profile.slow / profile.compute:.1f} times the median): whoever "
            "waits for everybody waits for the slowest"
        )
    best, second = ranking[0], ranking[1]
    yield f"{best.strategy} comes out first at {_ms(best.step)} a step, then {second.strategy} at {_ms(second.step)}"
    if best.discount < 1:
        yield f"its staleness or rarer averaging is counted as {1 - best.discount:.0%} of learning lost"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
