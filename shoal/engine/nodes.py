"""How this machine presents itself: as one node, or as several pretended ones that share it out between them."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from ipaddress import IPv4Address

from shoal.engine import gpus as cards
from shoal.engine import machine
from shoal.errors import BadSpec
from shoal.job.nodes import Gpu, Node

NAME = "local"
LOOPBACK = "127.0.0.1"
_FIRST_PRETENDED = IPv4Address("127.0.0.2")
_LEAST_SHARES = 8
_SHARES_PER_CPU = 8


def present(
    count: int = 1,
    *,
    cpus: float | None = None,
    memory: int | None = None,
    gpus: int | None = None,
    shares: int | None = None,
    labels: Mapping[str, str] | None = None,
) -> tuple[Node, ...]:
    """The nodes. What is given is what each node has; what is left out is the machine's, divided among them.

    GPUs given by number are pretended. Every node is also labelled `node=<its name>`. BadSpec for a number that no
    machine has.
    """
    for name, value, least in (("nodes", count, 1), ("cpus", cpus, 0.01), ("memory", memory, 1), ("gpus", gpus, 0)):
        if value is not None and value < least:
            raise BadSpec(f"{name}: {value} is less than {least:g}; give at least that, or leave it out")
    each_cpus = machine.cpus() / count if cpus is None else float(cpus)
    each_memory = machine.memory() // count if memory is None else memory
    cards_of = _share_out(count, gpus)
    names = [NAME] if count == 1 else [f"{NAME}-{i}" for i in range(count)]
    return tuple(
        Node(
            name=name,
            address=_address(i, count),
            cpus=each_cpus,
            memory=each_memory,
            gpus=cards_of[i],
            engine=NAME,
            labels={**(labels or {}), "node": name},
            shares=max(_LEAST_SHARES, int(_SHARES_PER_CPU * each_cpus)) if shares is None else shares,
        )
        for i, name in enumerate(names)
    )


def _share_out(count: int, gpus: int | None) -> list[tuple[Gpu, ...]]:
    if gpus is not None:
        return [cards.pretend(gpus)] * count
    return cards.split(cards.find(os.environ.get("CUDA_VISIBLE_DEVICES")), count)


def _address(number: int, count: int) -> str:
    """Each pretended node has a loopback address of its own where the system lets us bind one."""
    if count == 1:
        return LOOPBACK
    own = str(_FIRST_PRETENDED + number)
    return own if _bindable(own) else LOOPBACK


def _bindable(address: str) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
