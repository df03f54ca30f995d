"""Which strategy a run has, which device, and what follows from the strategy's name alone. Knows nothing of models."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch

from shoal.errors import BadSpec
from shoal.strategy import Strategy, parse
from shoal.train.world import World

DEFAULT = "allreduce"
# Workers that take every step together: what one of them decides alone, the others would wait for.
IN_STEP = ("allreduce", "ps-sync", "local-sgd", "fsdp", "tensor", "pipeline")

_log = logging.getLogger("shoal.train")


def strategy_of(world: World, wanted: str | None) -> tuple[World, Strategy]:
    """The job's strategy, else the script's, else all-reduce; the world with its name in it."""
    chosen = parse(world.strategy or wanted or DEFAULT)
    if world.strategy and wanted and parse(wanted).name != chosen.name and world.rank == 0:
        _log.info("the job says %s; the script's own choice %s is not used", chosen, wanted)
    if world.source == "shoal" and chosen.kind.servers and not world.servers:
        raise BadSpec(f"strategy {chosen.name} needs parameter servers and this job has none: run it with --servers 1")
    if world.servers and not chosen.kind.servers:
        raise BadSpec(
            f"this job has {len(world.servers)} servers and strategy {chosen.name} uses none: "
            "run it without --servers, or with a ps- strategy"
        )
    return replace(world, strategy=str(chosen)), chosen


def in_step(strategy: Strategy) -> bool:
    """Whether all workers take every step together."""
    if strategy.name == "ps-sync":
        return not strategy.options["backup"]
    return strategy.name in IN_STEP or (strategy.name == "ps-ssp" and strategy.options["staleness"] == 0)


def resumes(world: World, wanted: bool | None) -> bool:
    """Whether to look for a checkpoint: as told, else in a job, or when torchrun started the group again."""
    if wanted is not None:
        return wanted
    return world.source == "shoal" or world.variables.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def device_of(world: World, wanted: str | None) -> torch.device:
    """As told, else this worker's GPU, else the CPU. More workers than GPUs share them in turn."""
    if wanted:
        return torch.device(wanted)
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", world.local_rank % torch.cuda.device_count())
    if not world.alone:
        torch.cuda.set_device(device)  # collectives and streams take the current one
    return device
