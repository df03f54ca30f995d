"""What a run does, in words: the banner at `wrap`, and `run.explain()`. Takes facts, decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from shoal.strategy import Strategy
from shoal.train.tally import Tally
from shoal.train.unit import Unit, parameter_bytes, untrained
from shoal.train.world import World

TITLES = {
    "strategy": "strategy",
    "workers": "workers",
    "batch": "global batch",
    "samples_per_epoch": "samples per epoch",
    "learning_rate": "learning rate",
    "staleness": "staleness",
    "parameters": "parameters",
    "bytes_per_step": "bytes per step",
    "buffers": "buffers",
    "not_stepped": "not stepped",
}
_NOBODY = "as the optimizer has it; nobody scales it"
_AVERAGED = ("allreduce", "ps-sync", "fsdp", "tensor", "pipeline")


class Explanation(dict[str, Any]):
    """Facts by name; printed, one to a line."""

    def __str__(self) -> str:
        lines = [(TITLES.get(name, name.replace("_", " ")), _shown(name, value)) for name, value in self.items()]
        width = max((len(title) for title, _ in lines), default=0)
        return "\n".join(f"{title:<{width}}  {text}" for title, text in lines)


def explain(world: World, strategy: Strategy, tally: Tally, units: Sequence[Unit], replicas: int) -> Explanation:
    """Everything worth saying about this run."""
    facts = _joined([_facts(unit) for unit in units])
    optimizers = [optimizer for unit in units for optimizer in unit.optimizers]
    told = Explanation(strategy=_strategy(world, strategy), workers=_workers(world))
    told["batch"] = batch(world, strategy, tally.batch, replicas)
    told["samples_per_epoch"] = tally.samples_per_epoch
    told["learning_rate"] = f"{rates(optimizers)}: {facts.pop('learning_rate', _NOBODY)}"
    told["staleness"] = facts.pop("staleness", 0)
    told["parameters"] = parameter_bytes(optimizers)
    told["bytes_per_step"] = facts.pop("bytes_per_step", 0)
    told["buffers"] = facts.pop("buffers", "each worker's own")
    told.update(facts)
    idle = [name for unit in units if unit.partition is None for name in untrained(unit)]
    if idle:
        told["not_stepped"] = f"{len(idle)} trainable parameters are in no optimizer: {', '.join(idle[:3])}"
    return told


def banner(world: World, strategy: Strategy, tally: Tally, unit: Unit, replicas: int) -> str:
    """One line at `wrap`, where a wrong belief about the batch or the rate can still be mended."""
    facts = _facts(unit)
    parts = [
        f"{strategy} over {_workers(world)}",
        f"batch {batch(world, strategy, tally.batch, replicas)}",
        f"learning rate {rates(unit.optimizers)}: {facts.get('learning_rate', _NOBODY)}",
        f"{_size(parameter_bytes(unit.optimizers))} of parameters",
    ]
    if tally.samples_per_epoch:
        parts.insert(2, f"{tally.samples_per_epoch} samples per epoch")
    return "; ".join(parts)


def batch(world: World, strategy: Strategy, own: int | None, replicas: int) -> str:
    """The batch behind one update of the parameters, with how it comes about."""
    if own is None:
        return "known when the first batch is read"
    if world.alone:
        return str(own)
    if strategy.name in _AVERAGED:
        return f"{own} x {replicas} = {own * replicas}"
    return f"{own} in each step of each of {replicas} workers"


def rates(optimizers: Iterable[Optimizer]) -> str:
    """The learning rates there are, each once: `0.1, 0.01`."""
    found = {float(group["lr"]): None for one in optimizers for group in one.param_groups if "lr" in group}
    return ", ".join(f"{rate:g}" for rate in found) or "none"


def _facts(unit: Unit) -> dict[str, Any]:
    carrier = unit.sync or unit.partition
    return dict(carrier.facts()) if carrier else {}


def _joined(every: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The facts of all units in one: numbers of bytes add up, the rest is told once."""
    joined: dict[str, Any] = {}
    for facts in every:
        for name, value in facts.items():
            if name == "bytes_per_step" and isinstance(value, (int, float)):
                before = joined.get(name)  # may be words, as long as it is not known
                joined[name] = value + (before if isinstance(before, (int, float)) else 0)
            else:
                joined.setdefault(name, value)
    return joined


def _strategy(world: World, strategy: Strategy) -> str:
    return f"none: a world of one (asked for {strategy})" if world.alone else f"{strategy} ({strategy.kind.meaning})"


def _workers(world: World) -> str:
    return _count(world.size, "worker") + (f" and {_count(len(world.servers), 'server')}" if world.servers else "")


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "not known yet"
    if name in ("parameters", "bytes_per_step") and isinstance(value, (int, float)):
        return _size(value)
    return str(value)


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.4g} {unit}"
