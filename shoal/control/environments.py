"""The environments people can name: presets, and what was built on this machine and is shared between jobs.

Nodes of an engine that does not share this machine's disk build their own, when a job first needs them.
"""

from __future__ import annotations

from typing import Any

from shoal._lib.venvs import Facts, InUse, Venvs
from shoal.catalogue import nearest
from shoal.control.parts import Parts
from shoal.environments import PRESETS
from shoal.errors import Conflict, NotFound
from shoal.home import ENVIRONMENTS, cache_folder


def list_environments(parts: Parts) -> dict[str, Any]:
    """Every preset, and everything that is built here with its size, its last use and its users."""
    venvs = _venvs(parts)
    built = [facts.to_dict() for facts in venvs.entries()]
    presets = [preset.to_dict() for preset in PRESETS.values()]
    return {"presets": presets, "built": built, "folder": str(venvs.folder), "room": parts.environments_room}


def show_environment(parts: Parts, ref: str) -> dict[str, Any]:
    """A preset with what is built of it, or one built environment with its packages. NotFound with the nearest name."""
    venvs = _venvs(parts)
    if ref in PRESETS:
        built = [facts.to_dict() for facts in venvs.entries() if facts.name == ref]
        return {**PRESETS[ref].to_dict(), "kind": "preset", "built": built}
    facts = _find(venvs, ref)
    return {**facts.to_dict(), "kind": "built", "packages": venvs.packages(facts.key)}


def remove_environment(parts: Parts, ref: str) -> dict[str, Any]:
    """Takes a built one away; the next job that needs it builds it again. Conflict while somebody runs in it."""
    venvs = _venvs(parts)
    facts = _find(venvs, ref)
    try:
        venvs.remove(facts.key)
    except InUse:
        raise Conflict(
            f"environment {facts.name} ({facts.key}) is in use by {facts.users or 1} shepherds; stop their jobs first, "
            "or wait: what is not used longest goes by itself when room runs out"
        ) from None
    return facts.to_dict()


def _venvs(parts: Parts) -> Venvs:
    return Venvs(cache_folder() / ENVIRONMENTS, parts.environments_room)


def _find(venvs: Venvs, ref: str) -> Facts:
    """By its key, the beginning of one, or a name: then the one that was used last."""
    entries = venvs.entries()
    for facts in entries:
        if ref == facts.name or (len(ref) >= 4 and facts.key.startswith(ref)):
            return facts
    near = nearest(ref, [*PRESETS, *(facts.name for facts in entries), *(facts.key for facts in entries)])
    hint = f"did you mean {near!r}?" if near else "see 'shoal env ls'"
    raise NotFound(f"no environment {ref[:100]!r} is built here; {hint}", name=ref[:100], nearest=near)
