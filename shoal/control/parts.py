"""What the control plane is made of, handed around as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.control.bell import Bell
from shoal.engine.apart import Apart
from shoal.engine.api import Engine
from shoal.engine.isolation import InForce
from shoal.home import Home
from shoal.job.nodes import Node
from shoal.job.plan import Served
from shoal.storage.chunks import Chunks
from shoal.storage.logs import LogStore
from shoal.store import Store

# A shepherd that is silent this long is asked after at its engine; silence alone never kills.
BEAT_SECONDS = 10.0


@dataclass(frozen=True)
class Parts:
    """`url` is where shepherds reach this server; `served` names what the catalogues hold; `apart` says how jobs of
    different users are kept from each other."""

    store: Store
    chunks: Chunks
    logs: LogStore
    home: Home
    engines: Mapping[str, Engine]
    default_engine: str
    url: str
    fingerprint: str | None = None
    environments_room: int = 0  # bytes that built environments may take on each node; 0 for the builder's own bound
    served: Served = field(default_factory=Served)
    bell: Bell = field(default_factory=Bell)
    apart: Apart | None = None

    def isolation(self) -> InForce:
        """How jobs that start now are kept apart; may ask the database, and try things out the first time."""
        return self.apart.in_force() if self.apart else InForce("none", "nobody asked for anything else")

    def engine_of(self, name: str | None) -> Engine:
        return self.engines[name or self.default_engine]

    def nodes_of(self, name: str | None) -> tuple[Node, ...]:
        return self.engine_of(name).nodes()


def wake_queue(parts: Parts) -> None:
    """A job came, ended or was asked to stop: the loop looks at once."""
    parts.bell.ring("queue")
    parts.bell.ring("loop")
