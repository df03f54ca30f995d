"""How replicas agree, by name: every strategy with its options, their bounds and meanings, and the roles it needs.

One table for the job file, the command line, the forms and the training library. `parse` reads the grammar
`name[:key=value[,key=value]]`; what it refuses it refuses with the nearest name. Standard library only: it travels into
the user's interpreter. What a strategy does lives in `train/`, one file each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from shoal.catalogue import nearest
from shoal.errors import BadSpec, UnknownName

INFINITE = float("inf")


@dataclass(frozen=True)
class Option:
    """One setting of a strategy: its default, what may stand there, and one line of meaning."""

    name: str
    default: Any
    meaning: str
    low: float = -INFINITE
    high: float = INFINITE
    choices: tuple[str, ...] = ()
    only_with: tuple[str, ...] = ()  # another option and the values under which this one is read; any but its default

    @property
    def kind(self) -> str:
        """What a form would show: `choice`, `switch`, `whole`, `number` or `text`."""
        if self.choices:
            return "choice"
        if isinstance(self.default, bool):
            return "switch"
        if isinstance(self.default, int):
            return "whole"
        return "number" if isinstance(self.default, float) else "text"

    def bounds(self) -> str:
        """The allowed values in words."""
        if self.choices:
            return " | ".join(self.choices)
        if self.kind == "switch":
            return "true | false"
        if self.kind == "text":
            return "text"
        low = "" if self.low == -INFINITE else f"{self.low:g}"
        high = "" if self.high == INFINITE else f"{self.high:g}"
        return f"{low}..{high}" if low or high else "any number"

    def read(self, text: str) -> Any:
        """The value behind the text; BadSpec with the bound otherwise."""
        reader = _READERS[self.kind]
        value = reader(text)
        if value is None or (self.choices and value not in self.choices):
            raise self._wrong(text)
        if self.kind in ("whole", "number") and not self.low <= value <= self.high:
            raise self._wrong(text)
        return value

    def _wrong(self, text: str) -> BadSpec:
        near = nearest(text, self.choices) if self.choices else None
        hint = f"; did you mean {near!r}?" if near else ""
        return BadSpec(f"strategy option {self.name}={text!r} must be {self.bounds()}: {self.meaning}{hint}")


@dataclass(frozen=True)
class Kind:
    """What is known of a strategy before anything runs."""

    name: str
    family: str  # centralised, decentralised, partition, none
    meaning: str
    options: tuple[Option, ...] = ()
    servers: bool = False  # holds its parameters in server processes
    spares_workers: bool = False  # the others go on when a worker is lost, unless the job says otherwise
    check: Callable[[Mapping[str, Any]], str | None] = field(default=lambda options: None)  # contradictions, in words

    def option(self, name: str) -> Option:
        for option in self.options:
            if option.name == name:
                return option
        known = [option.name for option in self.options]
        raise UnknownName(f"option of strategy {self.name}", name, known, nearest(name, known))


@dataclass(frozen=True)
class Strategy:
    """A strategy as chosen: its kind and the value of every option."""

    kind: Kind
    options: Mapping[str, Any]
    given: tuple[str, ...] = ()  # the options that were written down

    @property
    def name(self) -> str:
        return self.kind.name

    def __str__(self) -> str:
        return ":".join([self.name, ",".join(f"{key}={_shown(self.options[key])}" for key in self.given)]).rstrip(":")


@lru_cache(maxsize=256)
def parse(text: str) -> Strategy:
    """The strategy behind `name[:key=value[,key=value]]`; UnknownName or BadSpec otherwise."""
    name, _, rest = text.strip().partition(":")
    if name not in STRATEGIES:
        raise UnknownName("strategy", name, sorted(STRATEGIES), nearest(name, STRATEGIES))
    kind = STRATEGIES[name]
    given = _pairs(text, rest)
    options = {option.name: option.default for option in kind.options}
    options.update({key: kind.option(key).read(value) for key, value in given.items()})
    contradiction = kind.check(options) or next(filter(None, (_unread(kind, key, options) for key in given)), None)
    if contradiction:
        raise BadSpec(f"strategy {text!r}: {contradiction}")
    return Strategy(kind, MappingProxyType(options), tuple(given))


def _unread(kind: Kind, key: str, options: Mapping[str, Any]) -> str | None:
    """Why an option that was given would not be read; None when it would."""
    needed = kind.option(key).only_with
    if not needed:
        return None
    other, *values = needed
    if options[other] in values or (not values and options[other] != kind.option(other).default):
        return None
    return f"{key} is read only with {other}={' or '.join(values) or '…'}: give both, or leave {key} out"


def _pairs(text: str, rest: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        if not (equals and key.strip() and value.strip()):
            raise BadSpec(f"strategy {text!r}: {part!r} is not key=value; write for example ps-ssp:staleness=3")
        if key.strip() in pairs:
            raise BadSpec(f"strategy {text!r}: {key.strip()} is given twice")
        pairs[key.strip()] = value.strip()
    return pairs


def _whole(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if value != value else value  # nan is no number anyone means


_READERS: dict[str, Callable[[str], Any]] = {
    "choice": str,
    "text": str,
    "switch": {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get,
    "whole": _whole,
    "number": _number,
}


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


# -- the table ---------------------------------------------------------------------------------------------------------

_COMPRESS = (
    Option("compress", "none", "what a gradient is squeezed into before it travels; the error is fed back",
           choices=("none", "fp16", "bf16", "topk", "onebit", "powersgd")),
    Option("ratio", 0.01, "the part of the entries that topk keeps", 1e-6, 1.0, only_with=("compress", "topk")),
    Option("rank", 2, "the rank that powersgd keeps", 1, 1024, only_with=("compress", "powersgd")),
)  # fmt: skip

_COMMON = (
    Option("data", "static", "who reads what: fixed parts, or small shards handed out as they are asked for",
           choices=("static", "dynamic")),
    Option("nan", "warn", "what a gradient that is not a number does", choices=("warn", "skip", "stop")),
    Option("average", "none", "averaged weights kept beside the model", choices=("none", "ema", "swa")),
    Option("decay", 0.999, "how slowly the ema forgets", 0.0, 1.0, only_with=("average", "ema")),
)  # fmt: skip

_SERVERS = (
    Option("replicas", 0, "copies of each server's state on the next server, against a lost machine", 0, 1),
    Option("snapshot", 0.0, "seconds between snapshots of each server's state on disk; 0 for none", 0.0, 86400.0),
    Option("chunk", 1.0, "MiB of parameters a server works at in one go; one for each of its cores", 0.001, 1024.0),
)

_SCALE = (
    Option("scale", "none", "how a stale delta is shrunk: by 1/tau, tau^-a, or hinge; never for tau of 0 and 1",
           choices=("none", "inverse", "poly", "hinge")),
    Option("a", 0.5, "the exponent of scale=poly, and the slope of scale=hinge", 0.0, 100.0,
           only_with=("scale", "poly", "hinge")),
    Option("b", 4.0, "the staleness up to which scale=hinge shrinks nothing", 0.0, 1e6, only_with=("scale", "hinge")),
    Option("compensate", 0.0, "delay compensation g + l*g*g*(w - w_read), with this l; 0 for none", 0.0, 1e3),
)  # fmt: skip


def _powersgd_needs_allreduce(options: Mapping[str, Any]) -> str | None:
    if options.get("compress") == "powersgd":
        return "compress=powersgd works on whole matrices and is linear: it is for allreduce; use topk, onebit or fp16"
    return None


def _softsync(options: Mapping[str, Any]) -> str | None:
    if options["c"] and options["n"]:
        return "c and n contradict each other (c = floor(workers / n)): give one of them"
    return _powersgd_needs_allreduce(options)


def _local_sgd(options: Mapping[str, Any]) -> str | None:
    every, fragments, delay = options["every"], options["fragments"], options["delay"]
    if fragments > 1 and (every % fragments or every < fragments):
        return f"every={every} must be a multiple of fragments={fragments}, so that each is sent once in every round"
    if delay and delay >= every // fragments:
        return f"delay={delay} must be less than every/fragments = {every // fragments}"
    if options["slowmo"] and options["outer"] != "average":
        return "slowmo and outer contradict each other: both are outer optimizers"
    return None


def _gossip(options: Mapping[str, Any]) -> str | None:
    if options["topology"] == "given" and not options["graph"]:
        return "topology=given needs graph=, such as graph=0>1;1>2;2>0"
    if options["graph"] and options["topology"] != "given":
        return "graph= is read only with topology=given"
    if options["mode"] == "push" and options["compress"] in ("topk", "onebit"):
        return "mode=push goes with no compression but fp16 and bf16: shares that arrive in part distort the model"
    return _powersgd_needs_allreduce(options)


STRATEGIES: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("native", "none", "hands off: the script does its own exchange", ()),
        Kind(
            "allreduce",
            "decentralised",
            "every step averages gradients over all workers, in buckets, while backward runs",
            (
                Option("bucket", 25.0, "size of a bucket in MB", 0.001, 4096.0),
                Option("unused", False, "search each backward for parameters that took no part"),
                *_COMPRESS,
                *_COMMON,
            ),
        ),
        Kind(
            "ps-sync",
            "centralised",
            "servers wait for every worker, apply the mean once, and everyone reads the same version",
            (
                Option("backup", 0, "workers that need not be waited for; their late gradients are dropped", 0, 1024),
                *_COMPRESS, *_SERVERS, *_COMMON,
            ),
            servers=True,
            check=_powersgd_needs_allreduce,
        ),
        Kind(
            "ps-async",
            "centralised",
            "servers apply each gradient as it comes; nobody waits (Downpour)",
            (
                *_SCALE,
                Option("fetch", 1, "steps between two reads of the parameters", 1, 1_000_000),
                Option("push", 1, "steps whose gradients are added up before one push", 1, 1_000_000),
                *_COMPRESS, *_SERVERS, *_COMMON,
            ),
            servers=True,
            spares_workers=True,
            check=_powersgd_needs_allreduce,
        ),
        Kind(
            "ps-softsync",
            "centralised",
            "servers apply the mean of every c gradients, whoever they come from",
            (
                Option("c", 0, "gradients to an update; 0 for the number of workers", 0, 100_000),
                Option("n", 0, "the paper's n: c = floor(workers / n)", 0, 100_000),
                Option("late", "keep", "gradients of an older version: keep them, or drop them (backup workers)",
                       choices=("keep", "drop")),
                Option("distinct", False, "count each worker once in an update"),
                *_SCALE, *_COMPRESS, *_SERVERS, *_COMMON,
            ),
            servers=True,
            spares_workers=True,
            check=_softsync,
        ),
        Kind(
            "ps-ssp",
            "centralised",
            "servers apply each gradient as it comes; nobody computes more than `staleness` steps ahead of the slowest",
            (
                Option("staleness", 3, "how far the fastest may be ahead; with 0 it is synchronous", 0, 1_000_000),
                *_SCALE, *_COMPRESS, *_SERVERS, *_COMMON,
            ),
            servers=True,
            spares_workers=True,
            check=_powersgd_needs_allreduce,
        ),
        Kind(
            "easgd",
            "centralised",
            "workers train alone and are pulled towards a centre, and it towards them, by an elastic force",
            (
                Option("every", 4, "local steps between two exchanges", 1, 1_000_000),
                Option("alpha", 0.0, "the elastic force; 0 for 0.9 / workers", 0.0, 1.0),
                Option("compress", "none", "what parameters are squeezed into before they travel",
                       choices=("none", "fp16", "bf16")),
                *_SERVERS, *_COMMON,
            ),
            servers=True,
            spares_workers=True,
            check=_powersgd_needs_allreduce,
        ),
        Kind(
            "local-sgd",
            "decentralised",
            "workers train alone and average their parameters every so often (DiLoCo with outer=nesterov)",
            (
                Option("every", 16, "local steps between two rounds", 1, 1_000_000),
                Option("outer", "average", "what is done with the mean change", choices=("average", "nesterov")),
                Option("outer_lr", 0.7, "the outer learning rate", 0.0, 100.0, only_with=("outer", "nesterov")),
                Option("outer_momentum", 0.9, "the outer momentum", 0.0, 1.0, only_with=("outer", "nesterov")),
                Option("fragments", 1, "parts of the model, each sent at its own time within a round", 1, 4096),
                Option("delay", 0, "steps between sending a fragment and taking its result", 0, 1_000_000),
                Option("mix", 0.0, "how much of the local value stays when a result is taken", 0.0, 1.0),
                Option("from_epoch", 0, "average every step before this epoch (post-local SGD)", 0, 1_000_000),
                Option("slowmo", 0.0, "slow momentum beta; 0 for none", 0.0, 1.0),
                Option("slowmo_lr", 1.0, "the alpha of slow momentum", 0.0, 100.0, only_with=("slowmo",)),
                Option("momentum", "keep", "the inner optimizer's momentum at a round", choices=("keep", "zero")),
                *_COMPRESS, *_COMMON,
            ),
            check=_local_sgd,
        ),
        Kind(
            "gossip",
            "decentralised",
            "each worker averages with one neighbour at a time; a slow one holds nobody up",
            (
                Option("mode", "pairs", "pairs averages both sides (AD-PSGD); push sends shares (SGP)",
                       choices=("pairs", "push")),
                Option("topology", "exponential", "who is whose neighbour",
                       choices=("ring", "exponential", "one-peer", "complete", "given")),
                Option("graph", "", "the edges of topology=given, such as 0>1;1>2;2>0"),
                Option("every", 1, "local steps between two exchanges", 1, 1_000_000),
                *_COMPRESS[:2], *_COMMON,
            ),
            spares_workers=True,
            check=_gossip,
        ),
        Kind(
            "fsdp",
            "partition",
            "every worker holds a part of parameters, gradients and optimizer state (FSDP2)",
            (
                Option("replicas", 1, "copies of the sharded model, in a two-dimensional mesh", 1, 100_000),
                Option("reshard", True, "give the whole parameters back after forward"),
                Option("block", 1.0, "size in MB from which on a repeated layer is gathered by itself", 0.0, 1e6),
                *_COMMON,
            ),
        ),
        Kind(
            "tensor",
            "partition",
            "the matrices of a layer are cut over workers (DTensor)",
            (
                Option("size", 0, "workers that share one copy of the model; 0 for all", 0, 100_000),
                Option("plan", "auto", "auto, or the name of a function in the script that returns a plan"),
                Option("copies", "replicate", "what the copies of the model do: keep all of it, or shard it (fsdp)",
                       choices=("replicate", "shard")),
                *_COMMON,
            ),
        ),
        Kind(
            "pipeline",
            "partition",
            "the layers are cut into stages, one after another over workers",
            (
                Option("stages", 0, "number of stages; 0 for all workers", 0, 100_000),
                Option("schedule", "1f1b", "in which order micro-batches move",
                       choices=("gpipe", "1f1b", "interleaved")),
                Option("microbatches", 0, "parts of a batch; 0 for twice the stages", 0, 100_000),
                Option("split", "auto", "where it is cut: by cost, or at run.mark", choices=("auto", "marks")),
                Option("replicas", "", "replicas of each stage, such as 2x1; empty for the same number everywhere"),
                Option("devices", "", "device kind of each stage, such as cpuxcuda; empty for the worker's own"),
                *_COMMON,
            ),
        ),
    )
}  # fmt: skip
