"""Who works at which stage of a pipeline, told from the options alone; its groups are made in `gather`.

With equally many workers of one kind everywhere there are several pipelines beside each other (copies), each with a
batch of its own. Otherwise there is one pipeline, and the workers of a stage take its micro-batches in turn (relayed).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from shoal.errors import BadSpec
from shoal.train.errors import BadModel
from shoal.train.partition import split

INTERLEAVED = 2  # stages to a worker
KINDS = ("cpu", "cuda")


@dataclass
class Crew:
    """The view of one worker."""

    rank: int
    widths: list[int]  # workers at each place of the pipeline, over all copies
    kinds: list[str]  # of device, at each place; empty for the model's own
    relayed: bool
    per_worker: int  # stages to a worker
    group: Any = field(default=None, repr=False)  # this worker's pipeline
    beside: Any = field(default=None, repr=False)  # those who hold the same stages; None when nobody else does

    @classmethod
    def of(cls, options: Mapping[str, Any], workers: int, rank: int) -> Crew:
        """BadSpec when workers, stages, replicas, devices and schedule do not go together."""
        replicas, devices, schedule = str(options["replicas"]), str(options["devices"]), str(options["schedule"])
        asked = int(options["stages"])
        places = asked or (len((replicas or devices).split("x")) if replicas or devices else workers)
        widths = split.replicas_of(replicas, places, workers)
        kinds = split.per_stage(devices, places, "devices") if devices else []
        for kind in kinds:
            if kind not in KINDS:
                raise BadSpec(
                    f"pipeline:devices={devices} names {kind!r}: write cpu or cuda for each stage, joined by x"
                )
        relayed = len(set(widths)) > 1 or len(set(kinds)) > 1 or places == 1
        if relayed and schedule == "interleaved":
            raise BadSpec(
                "pipeline:schedule=interleaved needs stages with equally many workers of one kind: use 1f1b or gpipe"
            )
        return cls(rank, widths, kinds, relayed, INTERLEAVED if schedule == "interleaved" else 1)

    @property
    def places(self) -> int:
        return len(self.widths)

    @property
    def stages(self) -> int:
        return self.places * self.per_worker

    @property
    def copies(self) -> int:
        return 1 if self.relayed else self.widths[0]

    @property
    def copy(self) -> int:
        return 0 if self.relayed else self.rank // self.places

    @property
    def ranks(self) -> list[list[int]]:
        """Who works at each place. Neighbours of a pipeline are neighbours in rank."""
        if not self.relayed:
            return [[copy * self.places + place for copy in range(self.widths[0])] for place in range(self.places)]
        first, made = 0, []
        for width in self.widths:
            made.append(list(range(first, first + width)))
            first += width
        return made

    @property
    def stage(self) -> int:
        """This worker's place, which is also its first stage."""
        return next(place for place, ranks in enumerate(self.ranks) if self.rank in ranks)

    @property
    def member(self) -> int:
        """Its number among those who take micro-batches in turn."""
        return self.ranks[self.stage].index(self.rank) if self.relayed else 0

    @property
    def turns(self) -> int:
        """How many share this worker's micro-batches with it, itself included."""
        return self.widths[self.stage] if self.relayed else 1

    @property
    def mine(self) -> list[int]:
        return [self.stage + round * self.places for round in range(self.per_worker)]

    @property
    def line(self) -> list[int]:
        """All workers of this pipeline."""
        if self.relayed:
            return [rank for ranks in self.ranks for rank in ranks]
        return [ranks[self.copy] for ranks in self.ranks]

    def holder(self, stage: int) -> int:
        """Who computes a whole batch of this pipeline at a stage."""
        return self.ranks[stage % self.places][0 if self.relayed else self.copy]

    @property
    def holders(self) -> dict[int, int]:
        """Stage → the rank that tells its tensors to all: that of the first copy."""
        return {stage: self.ranks[stage % self.places][0] for stage in range(self.stages)}

    @property
    def weights(self) -> list[int]:
        """How many share the work of each stage."""
        return self.widths * self.per_worker

    def gather(self) -> None:
        """Makes the groups. Collective; everybody makes all of them, in one order."""
        lines = [self.line] if self.relayed else [[ranks[copy] for ranks in self.ranks] for copy in range(self.copies)]
        for ranks in lines:
            group = dist.new_group(ranks)
            if self.rank in ranks:
                self.group = group
        for ranks in self.ranks:
            if len(ranks) > 1:
                group = dist.new_group(ranks)
                if self.rank in ranks:
                    self.beside = group

    def device(self, now: torch.device, kind: str) -> torch.device:
        """Where this worker computes; BadModel when there is no such device."""
        wanted = self.kinds[self.stage] if self.kinds else kind
        if wanted == now.type:
            return now
        if wanted == "cuda":
            if not torch.cuda.is_available():
                raise BadModel(
                    f"stage {self.stage} shall compute on cuda and worker-{self.rank} sees no card: "
                    "place it on a node with one, or write cpu in devices="
                )
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device(wanted)
