"""Each worker averages with one neighbour at a time, beside its training; a slow one holds nobody up.

`mode=pairs` is AD-PSGD (`gossip/pairs.py`), `mode=push` is SGP (`gossip/push.py`). Numbers among the buffers, such as
BatchNorm's means, are averaged like parameters. Workers come and go: whoever dies is no neighbour any more from the
moment its connection ends, whoever joins begins with the values of one that is there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from shoal.train import compress
from shoal.train.gossip.mesh import Mesh
from shoal.train.gossip.space import Space
from shoal.train.gossip.start import Hall
from shoal.train.topology import Topology
from shoal.train.unit import trained

if TYPE_CHECKING:
    from shoal.train.api import Setting, State

_log = logging.getLogger("shoal.train")


class Gossip:
    """The Synchroniser of `gossip`."""

    needs_gradient = False

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.spaces: dict[int, Space] = {}  # by the optimizer's identity
        self.mesh: Mesh | None = None
        self.hall: Hall | None = None

    def attach(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> nn.Module:
        setting, unit = self.setting, str(self.setting.unit)
        mesh = self.mesh = Mesh.of(setting.world)
        for number, optimizer in enumerate(optimizers):
            tensors: list[Tensor] = list(trained(optimizer))
            if number == 0:
                tensors += [one for one in model.buffers() if one.is_floating_point()]
            self.spaces[id(optimizer)] = Space(setting, mesh, f"{unit}.{number}", tensors)
        hall = self.hall = Hall(unit, mesh, model, optimizers, [space.replica for space in self.spaces.values()])
        mesh.enter(unit, hall)
        hall.begin(setting.seeing)
        return model

    def before_step(self, optimizer: Optimizer, skipped: bool = False) -> None:
        """The step is this worker's own. With the first one it answers its neighbours: not before, because a checkpoint
        may be loaded until now, and what they gave would be lost in it."""
        space = self.spaces[id(optimizer)]
        if self.mesh is not None and not space.answers:
            space.answers = True
            self.mesh.enter(space.name, space)

    def after_step(self, optimizer: Optimizer) -> None:
        self.spaces[id(optimizer)].step()
        if self.hall is not None:
            self.hall.under_way = True

    def finish(self) -> None:
        mesh, self.mesh = self.mesh, None
        if mesh is None:
            return
        try:
            for space in self.spaces.values():
                space.finish()
        finally:
            mesh.close()
            for space in self.spaces.values():
                space.close()

    def state(self) -> State:
        return {str(number): {"steps": space.steps} for number, space in enumerate(self.spaces.values())}

    def load(self, state: State) -> None:
        """The model has been loaded: what is exchanged begins with its values, on every worker alike. One that came to
        a training under way keeps what it took there."""
        joined = self.hall is not None and self.hall.joined
        if joined:
            _log.info("%s joins a training under way, ahead of the checkpoint", self.setting.world.me)
        for number, space in enumerate(self.spaces.values()):
            space.steps = int(state.get(str(number), {}).get("steps", 0))
            if joined:
                space.replica.give_back()
            else:
                space.replica.reset()

    def facts(self) -> Mapping[str, Any]:
        options, world = self.setting.options, self.setting.world
        moved = sum(space.replica.layout.bytes for space in self.spaces.values())
        return {
            "learning_rate": "yours, unscaled: each worker steps with its own batch",
            "staleness": "about one exchange: gradients are of the values before the last one",
            "bytes_per_step": round(
                _sends(options, world.rank, world.size) * moved * compress.share(options) / options["every"]
            ),
            "buffers": "numbers are averaged like parameters; integers and switches stay each worker's own",
            "neighbours": _told(options, world.rank, world.size),
        }


def _sends(options: Mapping[str, Any], rank: int, size: int) -> float:
    """How many copies of the model this worker sends in an exchange of its own."""
    topology = Topology.read(options["topology"], options["graph"], size)
    if options["mode"] == "push":
        return float(len(topology.out(rank, range(size))))
    pairs = topology.pairs(range(size))
    if rank in pairs:
        return 1.0
    return sum(1 / len(near) for near in pairs.values() if rank in near)  # its answers


def _told(options: Mapping[str, Any], rank: int, size: int) -> str:
    topology = Topology.read(options["topology"], options["graph"], size)
    if options["mode"] == "push":
        near = topology.out(rank, range(size))
        return f"pushes to {_named(near)}" + (" and on, in turn" if options["topology"] == "one-peer" else "")
    pairs = topology.pairs(range(size))
    if rank in pairs:
        return f"active, calls {_named(pairs[rank])}"
    return f"passive, called by {_named([one for one, near in pairs.items() if rank in near])}"


def _named(ranks: Sequence[int]) -> str:
    return ", ".join(f"worker-{rank}" for rank in ranks) or "nobody"
