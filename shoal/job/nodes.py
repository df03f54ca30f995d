"""Where processes can sit: nodes with what they have, and berths, the seats a gang was given on them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from shoal.job.fields import STORED, Resources
from shoal.job.plan import Slot


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    type: str = "gpu"


@dataclass(frozen=True, slots=True)
class Node:
    """One machine as an engine presents it. `shares` bounds how many processes that ask for no CPU sit there."""

    name: str
    address: str
    cpus: float
    memory: int
    gpus: tuple[Gpu, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    engine: str = "local"
    shares: int = 32

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Berth:
    """One slot's seat: the node, and which of its GPUs are its own."""

    slot: Slot
    node: str
    gpus: tuple[int, ...] = ()


Placement = tuple[Berth, ...]


def placement_to_json(placement: Iterable[Berth]) -> str:
    """What must be remembered of a placement: who sits where with what. Wishes that were met are not kept."""
    return json.dumps(
        [
            {
                "role": b.slot.role,
                "index": b.slot.index,
                "resources": b.slot.resources.model_dump(exclude_defaults=True),
                "node": b.node,
                "gpus": list(b.gpus),
            }
            for b in placement
        ],
        separators=(",", ":"),
    )


def placement_from_json(text: str) -> Placement:
    return tuple(
        Berth(
            Slot(raw["role"], raw["index"], Resources.model_validate(raw["resources"], context=STORED)),
            raw["node"],
            tuple(raw["gpus"]),
        )
        for raw in json.loads(text)
    )
