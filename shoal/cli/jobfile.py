"""From what was typed to one job: SCRIPT, a job file or the command behind `--`, with the flags laid over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.cli.flags import override
from shoal.client.draft import JOB_FILES, Draft, draft, read_job_file
from shoal.errors import BadSpec


@dataclass(frozen=True, slots=True)
class Typed:
    """One command line's job: plain data, the folder to send if one was named, and where relative paths start."""

    raw: dict[str, Any]
    folder: Path | None
    base: Path

    def draft(self) -> Draft:
        """The job, checked; BadSpec lists what is wrong with it."""
        return draft(self.raw, folder=self.folder, base=self.base)


def typed_job(
    script: str | None,
    file: str | None,
    after: Sequence[str] | None,
    flags: Mapping[str, Any],
    folder: str | None = None,
) -> Typed:
    """The job of one command line; BadSpec when it says two things at once.

    Paths in a job file start at the file's folder, typed ones at the current folder.
    """
    if script is not None and script.lower().endswith(JOB_FILES):
        if file is not None:
            raise BadSpec(f"two job files, {script} and {file}; give one of them")
        script, file = None, script
    raw = typed(read_job_file(Path(file)) if file is not None else {}, script, after, flags)
    base = Path.cwd() if file is None else Path(file).absolute().parent
    if file is not None and (script or "script" in flags):
        raw["script"] = str(Path(raw["script"]).expanduser().absolute())
    return Typed(raw, None if folder is None else Path(folder).expanduser().absolute(), base)


def typed(
    job: Mapping[str, Any], script: str | None, after: Sequence[str] | None, flags: Mapping[str, Any]
) -> dict[str, Any]:
    """The plain data of the job: `job` as the file has it, under what was typed."""
    if script is not None:
        if "script" in flags:
            raise BadSpec(f"two scripts, {script} and {flags['script']}; give one of them")
        flags = {**flags, "script": script}
    raw = override(job, flags)
    if after is None:
        return raw
    if raw.get("script"):
        return {**raw, "args": list(after)}
    if not after:
        raise BadSpec(
            "nothing stands behind '--'; put the command there: shoal run --workers 2 -- python -c 'print(1)'"
        )
    return {**raw, "command": list(after)}
