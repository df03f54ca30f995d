"""The files of a job that trains without a script: found here, they go along alone, without the folder they lie in."""

from __future__ import annotations

from pathlib import Path

from shoal.catalogue import nearest
from shoal.errors import BadSpec
from shoal.job.rows import FORMATS, INPUTS, is_address
from shoal.job.spec import JobSpec


def locate_rows(spec: JobSpec, folder: Path | None, base: Path) -> tuple[dict[str, str], dict[str, Path]]:
    """The keys as the job will read them, and the files behind their names; nothing for addresses."""
    named = {key: getattr(spec, key) for key in INPUTS}
    local = {key: value for key, value in named.items() if isinstance(value, str) and not is_address(value)}
    found = {key: _file(key, value, folder, base) for key, value in local.items()}
    if spec.in_place:
        return {key: str(path) for key, path in found.items()}, {}
    if folder is not None:
        return {key: path.relative_to(folder).as_posix() for key, path in found.items()}, {}
    names = {key: path.name for key, path in found.items()}
    if len(set(names.values())) < len(set(found.values())):
        names["valid"] = f"valid-{names['valid']}"
    return names, {names[key]: path for key, path in found.items()}


def _file(key: str, named: str, folder: Path | None, base: Path) -> Path:
    path = (folder or base) / Path(named).expanduser()
    if not path.exists() and folder is not None:
        path = base / Path(named).expanduser()
    problem = _problem(path, folder)
    if problem:
        message = f"{key}: {named} {problem}"
        raise BadSpec(message, [{"field": key, "value": named, "message": problem}])
    return path.parent.resolve() / path.name


def _problem(path: Path, folder: Path | None) -> str | None:
    if path.is_dir():
        return "is a folder; name a file, or put the folder into a pool with 'shoal data put' and give its address"
    if not path.exists():
        beside = path.parent.iterdir() if path.parent.is_dir() else ()
        near = nearest(path.name, [other.name for other in beside])
        return f"does not exist (looked at {path}); " + (f"did you mean {near}?" if near else "check the path")
    if path.suffix.lower() not in FORMATS:
        return f"is of a type that is not read; known: {', '.join(FORMATS)}"
    if path.stat().st_size == 0:
        return "is empty; give a file with rows"
    if folder is not None and not (path.parent.resolve() / path.name).is_relative_to(folder):
        return f"is not in the folder {folder}; give a folder that holds it, or leave folder out"
    return None
