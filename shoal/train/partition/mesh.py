"""Who stands where: workers laid out in one, two or three dimensions, the innermost first. Pure but for `build`.

The innermost dimension is the one that speaks most (a layer's parts, a pipeline's stages), because neighbouring ranks
mostly share a host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.errors import BadSpec
from shoal.train.errors import BadModel

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

COPY, SHARD, PART, STAGE = "copy", "shard", "part", "stage"  # names of dimensions


@dataclass(frozen=True)
class Layout:
    """Dimensions from the outermost to the innermost, and how long each is."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def workers(self) -> int:
        count = 1
        for size in self.sizes:
            count *= size
        return count

    def place(self, rank: int) -> dict[str, int]:
        """Where a rank stands in every dimension."""
        found = {}
        for name, size in zip(reversed(self.names), reversed(self.sizes), strict=True):
            rank, found[name] = divmod(rank, size)
        return found

    def size(self, name: str) -> int:
        return self.sizes[self.names.index(name)]

    def line(self, rank: int, name: str) -> list[int]:
        """The ranks that differ from this one only in the dimension, in order."""
        at = self.names.index(name)
        step = 1
        for size in self.sizes[at + 1 :]:
            step *= size
        first = rank - self.place(rank)[name] * step
        return [first + number * step for number in range(self.sizes[at])]


def divided(workers: int, by: int, what: str) -> int:
    """How many groups of `by` the workers make; BadSpec when some would be left over."""
    if by > workers:
        raise BadSpec(f"{what}={by} needs {by} workers and there are {workers}: lower {what} or start more workers")
    if workers % by:
        near = [number for number in range(1, workers + 1) if workers % number == 0]
        raise BadSpec(
            f"{workers} workers cannot be divided by {what}={by}: choose one of {', '.join(map(str, near))}, "
            f"or start {workers - workers % by} or {workers - workers % by + by} workers"
        )
    return workers // by


def build(layout: Layout, kind: str) -> DeviceMesh:
    """The mesh for a kind of device. Collective."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(kind, layout.sizes, mesh_dim_names=layout.names)


def device_kind(model: nn.Module) -> str:
    """The kind of device all parameters of the model lie on; BadModel otherwise."""
    where: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        where.setdefault(parameter.device.type, name)
    if len(where) > 1:
        told = ", ".join(f"{name!r} on {kind}" for kind, name in where.items())
        raise BadModel(
            f"the parameters lie on {len(where)} kinds of device ({told}): move the model to one, model.to(run.device)"
        )
    kind = next(iter(where), "cpu")
    if kind == "meta":
        raise BadModel(
            f"{next(iter(where.values()))!r} has no values (meta device): give it some before wrap, with model.to_empty"
        )
    return kind
