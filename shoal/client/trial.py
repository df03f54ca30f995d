"""A trial: the identical job on this machine, one process per role, a minute at most, before the real queue."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.client.connect import here
from shoal.client.draft import draft
from shoal.client.http import Api
from shoal.client.jobs import Job
from shoal.client.upload import Progress
from shoal.job.fields import Resources
from shoal.job.roles import Count, RoleSpec
from shoal.job.spec import JobSpec

if TYPE_CHECKING:
    from shoal.client.draft import Source

SECONDS = 60.0
TAG = "try"
ONE = Count(1, 1)


@dataclass(frozen=True, slots=True)
class Machine:
    """What is here to try on."""

    cpus: float
    memory: int
    gpus: int

    @classmethod
    def of(cls, nodes: Iterable[Mapping[str, Any]]) -> Machine:
        """The largest of the nodes an embedded server presents."""
        known = [(float(n.get("cpus") or 0), int(n.get("memory") or 0), len(n.get("gpus") or ())) for n in nodes]
        return cls(*max(known, default=(0.0, 0, 0)))


def try_job(
    source: Source,
    *,
    folder: str | Path | None = None,
    base: str | Path | None = None,
    api: Api | None = None,
    progress: Progress | None = None,
    **keys: Any,
) -> Job:
    """Submits the trial of a job to the server of this machine; returns once it is queued."""
    ready = draft(source, folder=folder, base=base, **keys)
    server = api or here()
    nodes = server.request("GET", "/nodes")
    machine = Machine.of(nodes if isinstance(nodes, list) else nodes.get("nodes", ()))
    return Job(server, replace(ready, spec=trial(ready.spec, machine)).send(server, progress))


def good(job: Job) -> bool:
    """Whether a trial went well: it succeeded, or was still running when its minute was over."""
    return job.state == "succeeded" or (job.state == "stopped" and job.reason == "max_duration")


def trial(spec: JobSpec, machine: Machine) -> JobSpec:
    """The job to try: same script, arguments and roles; small, short, and asking for nothing this machine has not."""
    roles = spec.expand()
    drop = _beyond([role.resources for role in roles], machine)
    limit = min(spec.max_duration or SECONDS, SECONDS)
    changes: dict[str, Any] = {
        "workers": ONE if spec.workers is not None else None,
        "servers": ONE if spec.servers is not None and spec.servers.high else None,
        "roles": {name: _one(role, drop) for name, role in spec.roles.items() if role.count.high},
        "resources": spec.resources.model_copy(update=drop),
        "max_duration": limit,
        "estimate": spec.estimate if spec.estimate is not None and spec.estimate <= limit else None,
        "retries": 0,
        "tags": tuple(dict.fromkeys((*spec.tags, TAG))),
        # Names that only the real queue's server knows.
        "size": None,
        "engine": None,
        "labels": {},
        "key": None,
        "outputs": None,  # a trial leaves nothing where results are looked for
    }
    return spec.model_copy(update=changes)


def _beyond(asked: list[Resources], machine: Machine) -> dict[str, Any]:
    """The requests to drop, because one process of each role together would not fit here."""
    drop: dict[str, Any] = {}
    if sum(one.cpu or 0.0 for one in asked) > machine.cpus:
        drop.update(cpu=None, cpu_quota=False)
    if sum(one.memory or 0 for one in asked) > machine.memory:
        drop["memory"] = None
    if sum(one.gpu for one in asked) > machine.gpus:
        drop.update(gpu=0, gpu_type=None)
    return drop


def _one(role: RoleSpec, drop: Mapping[str, Any]) -> RoleSpec:
    resources = None if role.resources is None else role.resources.model_copy(update=dict(drop))
    return role.model_copy(update={"count": ONE, "resources": resources, "apart": False, "labels": {}})
