"""An engine without machines: as many nodes as one likes, shepherds that exist only on paper.

For tests of the control loop and for benches that play the shepherds themselves. It keeps the bargain of `Engine`
honestly: starting twice starts once, what was killed is gone, what was not cleaned is left over.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from shoal.engine.api import Can, Gang, Liveness, Sight
from shoal.errors import StartFailed
from shoal.job.nodes import Gpu, Node


class SimulatedEngine:
    """Nodes `sim-0` … with what they are given; `starts` counts every start that was not a repetition."""

    name = "simulated"
    can = Can(shared_folder=True, pretend=True)

    def __init__(self, nodes: int = 1, cpus: float = 2, memory: int = 8 << 30, gpus: int = 0, shares: int = 32) -> None:
        own = tuple(Gpu(index, "pretend") for index in range(gpus))
        self._nodes = tuple(
            Node(f"sim-{i}", "127.0.0.1", cpus, memory, own, engine=self.name, shares=shares) for i in range(nodes)
        )
        self._gangs: dict[str, dict[str, Sight]] = {}
        self._lock = threading.Lock()
        self.tasks: dict[str, Gang] = {}
        self.starts = 0
        self.refuse: str | None = None  # when set, starts fail with this message

    def nodes(self) -> tuple[Node, ...]:
        return self._nodes

    def start(self, gang: Gang) -> str:
        with self._lock:
            if self.refuse is not None:
                raise StartFailed(self.refuse)
            if gang.key not in self._gangs:
                self._gangs[gang.key] = dict.fromkeys(gang.nodes, "alive")
                self.tasks[gang.key] = gang
                self.starts += 1
        return ",".join(gang.nodes)

    def poll(self, handles: Mapping[str, str]) -> Mapping[str, Liveness]:
        with self._lock:
            return {key: self._sight(key, handle) for key, handle in handles.items()}

    def kill(self, key: str, handle: str = "") -> bool:
        self.see(key, "gone")
        return True

    def clean(self, key: str, handle: str = "") -> bool:
        with self._lock:
            if any(sight != "gone" for sight in self._gangs.get(key, {}).values()):
                return False
            self._gangs.pop(key, None)
            return True

    def leftovers(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._gangs)

    def close(self) -> None:
        """Nothing to let go of."""

    def see(self, key: str, sight: Sight, node: str | None = None) -> None:
        """What `poll` will answer for one node of a gang, or for all of them."""
        with self._lock:
            known = self._gangs.get(key, {})
            for name in [node] if node else list(known):
                known[name] = sight

    def _sight(self, key: str, handle: str) -> Liveness:
        if key in self._gangs:
            return Liveness(dict(self._gangs[key]))
        return Liveness({node: "gone" for node in handle.split(",") if node})
