"""What jobs run in, seen from outside: list it, look at it, build it ahead, take it away, freeze what a job had."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from shoal import environments as table
from shoal.client.connect import current
from shoal.errors import BadSpec, NotFound

if TYPE_CHECKING:
    from shoal.client.http import Api
    from shoal.client.jobs import Job
    from shoal.client.upload import Progress

__all__ = ["build", "freeze", "ls", "rm", "show"]

_FREEZE_HEAD = "# What job {id} ({name}) ran with, attempt {attempt}."


def ls(api: Api | None = None) -> dict[str, Any]:
    """`presets` and `built`: what can be named, and what lies ready on the server's machine."""
    return dict((api or current()).request("GET", "/environments"))


def show(name: str, api: Api | None = None) -> dict[str, Any]:
    """A preset, or a built environment by its key or name, with its packages. NotFound with the nearest name."""
    return dict((api or current()).request("GET", f"/environments/{quote(name, safe='')}"))


def rm(name: str, api: Api | None = None) -> dict[str, Any]:
    """Takes a built environment away; Conflict while a job runs in it."""
    return dict((api or current()).request("DELETE", f"/environments/{quote(name, safe='')}"))


def build(environment: str, api: Api | None = None, progress: Progress | None = None) -> Job:
    """Has it built before a job needs it: a preset, or a requirements file by its path here.

    The build is a job that does nothing else, so that it waits its turn, can be followed and stopped, and fails with a
    reason as every job does. It ends at once when the environment is there already.
    """
    from shoal.client.draft import draft
    from shoal.client.jobs import Job

    written, bracket, extras = environment.partition("[")
    path = Path(written).expanduser()
    named, folder = environment, None
    if path.is_file() and table.is_file(path.name):
        named, folder = path.name + bracket + extras, path.absolute().parent
    kind = table.read(named).kind
    if kind in ("path", "image"):
        raise BadSpec(f"{environment!r} is not built but used as it is; build a preset or a requirements file")
    raw = {"command": ["true"], "environment": named, "name": "environment", "retries": 0, "tags": ["environment"]}
    ready = draft(raw, folder=folder)
    api = api or current()
    return Job(api, ready.send(api, progress))


def freeze(job: Job) -> str:
    """The packages of a job's last attempt as a requirements file; NotFound when none were recorded."""
    attempts = job.refresh().data.get("attempts") or []
    packages: Mapping[str, str] = ((attempts[-1].get("record") or {}) if attempts else {}).get("packages") or {}
    if not packages:
        raise NotFound(
            f"job {job.id} has no record of its packages: none of its processes came so far as to tell; freeze one "
            "whose script has started, or see 'shoal env show' for what is in a built environment"
        )
    head = _FREEZE_HEAD.format(id=job.id, name=job.name, attempt=len(attempts))
    lines = [f"{name}=={version}" for name, version in sorted(packages.items(), key=lambda pair: pair[0].lower())]
    return "\n".join([head, *lines, ""])
