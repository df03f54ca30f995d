"""What would be started: the job's slots, what they ask for in all, and the keys that nobody serves yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shoal import environments
from shoal.catalogue import nearest
from shoal.errors import NotServed, UnknownName
from shoal.job.fields import Resources
from shoal.job.roles import Role
from shoal.job.spec import JobSpec


@dataclass(frozen=True, slots=True)
class Slot:
    """One unit to place: a worker with its CPUs, memory and GPUs. A launcher may run several processes in it."""

    role: str
    index: int
    resources: Resources
    apart: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    needed: bool = True  # False for the part of min..max that may be left out


@dataclass(frozen=True, slots=True)
class Plan:
    """A job on paper: printable, comparable, made without touching anything."""

    spec: JobSpec
    roles: tuple[Role, ...]
    slots: tuple[Slot, ...]
    notes: tuple[str, ...]

    def totals(self) -> dict[str, float]:
        return {
            "processes": len(self.slots),
            "cpu": sum(slot.resources.cpu or 0.0 for slot in self.slots),
            "memory": sum(slot.resources.memory or 0 for slot in self.slots),
            "gpu": sum(slot.resources.gpu for slot in self.slots),
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.spec.title,
            "framework": self.spec.kind,
            "strategy": self.spec.strategy or self.spec.pair.strategy,
            "roles": [
                {"name": r.name, "count": r.low if r.low == r.high else f"{r.low}..{r.high}", "on_lost": r.on_lost,
                 "resources": r.resources.model_dump(exclude_none=True)}
                for r in self.roles
            ],
            "totals": self.totals(),
            "notes": list(self.notes),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Served:
    """What this server can do today: the names its catalogues hold."""

    frameworks: tuple[str, ...] = ("pytorch", "command")
    engines: tuple[str, ...] = ("local",)
    sizes: Mapping[str, Resources] = field(default_factory=dict)


def make_plan(spec: JobSpec, served: Served) -> Plan:
    """The plan, or NotServed / UnknownName that names the key."""
    refuse_unserved(spec, served)
    spec = apply_size(spec, served.sizes)
    roles = spec.expand()
    slots = tuple(slot for role in roles for slot in _slots(role))
    return Plan(spec, roles, slots, (*_notes(roles), *_kept(spec)))


def apply_size(spec: JobSpec, sizes: Mapping[str, Resources]) -> JobSpec:
    """The named size as resources; nothing changes without one."""
    if spec.size is None:
        return spec
    if spec.size not in sizes:
        raise UnknownName("size", spec.size, sorted(sizes), nearest(spec.size, sizes))
    return spec.model_copy(update={"resources": sizes[spec.size], "size": None})


def refuse_unserved(spec: JobSpec, served: Served) -> None:
    """Keys that parse but that nothing here serves are refused by name, never ignored."""
    if spec.kind not in served.frameworks:
        raise NotServed(
            f"framework: {spec.kind!r} is not served yet; served: {', '.join(served.frameworks)}",
            key="framework",
        )
    if spec.engine is not None and spec.engine not in served.engines:
        raise NotServed(f"engine: {spec.engine!r} is not served yet; served: {', '.join(served.engines)}", key="engine")
    for name, address in spec.brought.items():
        if address.startswith("dataset://"):
            raise NotServed(
                f"inputs.{name}: datasets are not served yet ({address}); use pool://me/FOLDER", key="inputs"
            )
    if spec.outputs is not None and not spec.outputs.startswith("pool://"):
        raise NotServed(f"outputs: only pool:// addresses are served, not {spec.outputs!r}", key="outputs")


def _slots(role: Role) -> Iterable[Slot]:
    pattern = Slot(role.name, 0, role.resources, role.apart, tuple(sorted(role.labels.items())))
    for index in range(role.high):
        yield replace(pattern, index=index, needed=index < role.low)


def _notes(roles: Iterable[Role]) -> Iterable[str]:
    for role in roles:
        if role.resources.cpu is None:
            yield f"{role.name}: cpu is not set, so its processes share the node's cores with other jobs"
        if role.low != role.high:
            yield f"{role.name}: starts with as many as fit, at least {role.low} and at most {role.high}"


def _kept(spec: JobSpec) -> Iterable[str]:
    preset = environments.PRESETS.get(spec.environment or "")
    if preset is not None:
        yield f"environment: {preset.name} is kept until {preset.until}; {preset.about}"
