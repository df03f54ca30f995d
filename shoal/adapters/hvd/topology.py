"""Who a worker is among all, among those of its machine, and among those of other machines like it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Topology:
    """Horovod's six numbers. The cross ones count the machines that have a worker of this local rank."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    cross_size: int = 1
    is_homogeneous: bool = True

    @classmethod
    def of(cls, rank: int, nodes: Sequence[str]) -> Topology:
        """`nodes` names the machine of every worker, in the order of ranks."""
        here = [one for one, node in enumerate(nodes) if node == nodes[rank]]
        counts = {node: nodes.count(node) for node in dict.fromkeys(nodes)}
        local = here.index(rank)
        like = [node for node, count in counts.items() if count > local]
        return cls(
            rank=rank,
            size=len(nodes),
            local_rank=local,
            local_size=len(here),
            cross_rank=like.index(nodes[rank]),
            cross_size=len(like),
            is_homogeneous=len(set(counts.values())) == 1,
        )
