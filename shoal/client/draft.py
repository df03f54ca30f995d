"""From what a user names (script, job file, dict, job class) to a checked job and the folder that goes with it."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal import environments
from shoal.catalogue import nearest
from shoal.client.connect import note_of
from shoal.client.http import Api
from shoal.client.origin import Gathering
from shoal.client.rows import locate_rows
from shoal.client.upload import Progress, upload, upload_files
from shoal.errors import BadSpec
from shoal.home import Home
from shoal.job.fields import Resources
from shoal.job.file import MOST_BYTES, read_yaml
from shoal.job.spec import JobSpec, parse

if TYPE_CHECKING:
    from shoal.client.kinds import Kind

    Source = str | Path | Mapping[str, Any] | JobSpec | Kind

JOB_FILES = (".yaml", ".yml", ".json")
RESOURCES = ("cpu", "memory", "gpu", "gpu_type", "cpu_quota")  # keys of `resources` that may stand by themselves


@dataclass(frozen=True, slots=True)
class Draft:
    """A job that was checked here and not sent yet."""

    spec: JobSpec
    folder: Path | None = None  # what to upload, or where to run in place
    manifest: str | None = None  # code that the server already has
    in_place: str | None = None
    files: Mapping[str, Path] = field(default_factory=dict)  # what to upload without its folder
    written_in: Path | None = None  # where the code lies that the folder was made from, when that is elsewhere
    clone_of: str | None = None  # the job whose code this is

    def send(self, api: Api, progress: Progress | None = None) -> dict[str, Any]:
        """Uploads the folder or the files, then submits; the job as the server describes it."""
        origin = self._gather()
        if self.files and self.in_place is None:
            return replace(self, manifest=upload_files(api, self.files, progress))._post(api, origin)
        if self.folder is None or self.in_place is not None:
            return self._post(api, origin)
        return replace(self, manifest=upload(api, self.folder, progress))._post(api, origin)

    def post(self, api: Api) -> dict[str, Any]:
        """Submits what needs no upload."""
        return self._post(api, self._gather())

    def _gather(self) -> Gathering:
        return Gathering(
            self.written_in or self.folder,
            arguments=self.spec.args or self.spec.command or (),
            environments=[role.env for role in self.spec.expand()],
            clone_of=self.clone_of,
        )

    def _post(self, api: Api, origin: Gathering) -> dict[str, Any]:
        """The key makes a repeated request the same job, so a break on the way is simply tried again."""
        key = self.spec.key or secrets.token_hex(16)
        spec = {**self.wire(api), "key": key}
        body = {"spec": spec, "manifest": self.manifest, "in_place": self.in_place, "key": key}
        return dict(api.request("POST", "/jobs", json={**body, "origin": origin.result()}, again=True))

    def plan(self, api: Api) -> dict[str, Any]:
        """What would be started; nothing is stored or sent but the specification."""
        return dict(api.request("POST", "/plan", json={"spec": self.wire(api)}, again=True))

    def wire(self, api: Api) -> dict[str, Any]:
        """The specification as plain data, with the submitter's interpreter when the server can see it."""
        spec = self.spec
        if spec.environment is None and (api.local or _same_home(api)):
            spec = spec.model_copy(update={"environment": sys.executable})
        return spec.model_dump(mode="json", exclude_unset=True)


def draft(source: Source, *, folder: str | Path | None = None, base: str | Path | None = None, **keys: Any) -> Draft:
    """The job of `source` with `keys` laid over it; BadSpec for all that is wrong with it, before anything is sent."""
    raw, start, own_folder = _read(source, Path(base or ".").absolute())
    spec = parse(_overlay(raw, keys))
    chosen = folder if folder is not None else own_folder
    root = None if chosen is None else _folder(start / Path(chosen).expanduser())
    if spec.script is not None:
        root, script = _locate(spec.script, root, start)
        spec = spec.model_copy(update={"script": script})
    located, files = locate_rows(spec, root, start)
    spec = spec.model_copy(update=located)
    root = (root or start) if spec.in_place else root
    if spec.environment is not None and environments.is_file(spec.environment):
        spec = spec.model_copy(update={"environment": _locate_file(spec.environment, root, start)})
    if not spec.in_place:
        return Draft(spec, root, files={} if root else files)
    return Draft(spec, root, in_place=str(root))


def clone_of(data: Mapping[str, Any], changes: Mapping[str, Any]) -> Draft:
    """The same job again, from the server's description: same code, its own key; None takes a key out."""
    raw = {name: value for name, value in data["spec"].items() if name not in {"owner", "key"}}
    gone = {name for name, value in changes.items() if value is None}
    kept = {name: value for name, value in raw.items() if name not in gone}
    spec = parse(_overlay(kept, changes))
    return Draft(spec, manifest=data.get("manifest"), in_place=data.get("in_place"), clone_of=data.get("id"))


def read_job_file(path: Path) -> dict[str, Any]:
    """The plain data of a job file; BadSpec that names the file otherwise."""
    text = _text(path)
    try:
        data = read_yaml(text)
    except BadSpec as wrong:
        raise BadSpec(f"{path}: {wrong.message}") from None
    if not isinstance(data, dict):
        kind = "nothing" if data is None else type(data).__name__
        raise BadSpec(f"{path} holds {kind}; a job file is a map of keys to values, such as 'script: train.py'")
    return data


def _read(source: Source, base: Path) -> tuple[dict[str, Any], Path, str | Path | None]:
    """Plain data, where its relative paths start, and the folder it names itself."""
    from shoal.client.kinds import Kind

    if isinstance(source, Kind):
        return _overlay({}, source.keys()), base, source.folder
    if isinstance(source, JobSpec):
        return source.model_dump(exclude_unset=True), base, None
    if isinstance(source, Mapping):
        return dict(source), base, None
    if not isinstance(source, str | Path):
        raise BadSpec(
            f"a job is a script, a job file, a dict, a specification or a job class, not {type(source).__name__}"
        )
    path = base / Path(source).expanduser()
    if path.suffix.lower() in JOB_FILES:
        return read_job_file(path), path.parent, None
    return {"script": str(source)}, base, None


def _overlay(raw: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    said = {name: value for name, value in keys.items() if value is not None}
    resources = {name: said.pop(name) for name in RESOURCES if name in said}
    merged = {**raw, **said}
    if resources:
        known = merged.get("resources") or {}
        known = known.model_dump(exclude_unset=True) if isinstance(known, Resources) else known
        merged["resources"] = {**known, **resources} if isinstance(known, Mapping) else known
    if isinstance(merged.get("script"), os.PathLike):
        merged["script"] = os.fspath(merged["script"])
    return merged


def _folder(path: Path) -> Path:
    if not path.exists():
        raise BadSpec(f"folder: there is no {path}; check the path", [_problem("folder", path, "does not exist")])
    if not path.is_dir():
        raise BadSpec(
            f"folder: {path} is a file; give the folder that holds it", [_problem("folder", path, "is a file")]
        )
    return path.resolve()


def _locate(script: str, folder: Path | None, base: Path) -> tuple[Path, str]:
    """The folder to send and the script's path in it."""
    path = Path(script).expanduser()
    found = base / path
    if folder is not None and (folder / path).exists():
        found = folder / path
    _check_script(found, script)
    # Only the folder is resolved: a script that is a link keeps its name.
    found = found.parent.resolve() / found.name
    if folder is None:
        return found.parent, found.name
    if not found.is_relative_to(folder):
        message = f"script: {found} is not in the folder {folder}; give a folder that holds it, or leave folder out"
        raise BadSpec(message, [_problem("script", script, "is not in the folder")])
    return folder, found.relative_to(folder).as_posix()


def _locate_file(environment: str, folder: Path | None, base: Path) -> str:
    """A requirements file by its path in the folder that is sent; it may have been named from where one stands."""
    path = environments.read(environment).path
    if folder is None:
        message = f"environment: {path} is a file, and nothing is sent along; give the folder that holds it"
        raise BadSpec(message, [_problem("environment", environment, "is in no folder that is sent")])
    if (folder / path).is_file():
        return environment
    found = (base / path).resolve()
    if found.is_file() and found.is_relative_to(folder):
        return found.relative_to(folder).as_posix() + environment[len(path) :]
    what = f"{found} is not in the folder that is sent" if found.is_file() else f"there is no {path}"
    message = f"environment: {what} (looked in {folder}); give a folder that holds it, or copy it there"
    raise BadSpec(message, [_problem("environment", environment, "is not in the folder")])


def _check_script(found: Path, script: str) -> None:
    if found.is_dir():
        message = f"script: {script} is a folder; name the script in it, such as {script.rstrip('/')}/train.py"
        raise BadSpec(message, [_problem("script", script, "is a folder")])
    if not found.exists():
        beside = found.parent.iterdir() if found.parent.is_dir() else ()
        near = nearest(found.name, [other.name for other in beside])
        hint = f"did you mean {Path(script).with_name(near)}?" if near else "check the path"
        message = f"script: there is no {script} (looked at {found}); {hint}"
        raise BadSpec(message, [_problem("script", script, "does not exist")])


def _text(path: Path) -> str:
    if path.is_dir():
        raise BadSpec(f"{path} is a folder, not a job file; name the file in it, such as {path / 'shoal.yaml'}")
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise BadSpec(f"there is no job file {path}; check the path") from None
    except UnicodeDecodeError as wrong:
        raise BadSpec(f"{path} is not text in UTF-8 (byte {wrong.start}); a job file is YAML") from None
    except OSError as wrong:
        raise BadSpec(f"the job file {path} cannot be read: {wrong.strerror}") from None
    if len(text) > MOST_BYTES:
        raise BadSpec(f"{path} is longer than {MOST_BYTES} characters: put data into inputs, not into the job file")
    return text


def _problem(field: str, value: object, message: str) -> dict[str, Any]:
    return {"field": field, "value": str(value), "message": message}


def _same_home(api: Api) -> bool:
    note = note_of(Home.here())
    return note is not None and note.url.rstrip("/") == api.url
