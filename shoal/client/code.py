"""How the code of two jobs differs: the folders as they were uploaded, file by file, and line by line when asked."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, NamedTuple

from shoal.client.jobs import Job

MOST_BYTES = 1 << 20  # of a file whose lines are compared


class FileChange(NamedTuple):
    """One file that differs; None on the side that has no such file."""

    path: str
    a: dict[str, Any] | None
    b: dict[str, Any] | None


def changed_files(a: Job, b: Job) -> list[FileChange]:
    """Files whose content or mode differs, by path; none when one of the jobs has no uploaded folder."""
    first, second = a.data.get("manifest"), b.data.get("manifest")
    if first == second or not first or not second:
        return []
    ours, theirs = _files(a), _files(b)
    pairs = (FileChange(path, ours.get(path), theirs.get(path)) for path in sorted(ours.keys() | theirs.keys()))
    return [pair for pair in pairs if _content(pair.a) != _content(pair.b)]


def changed_lines(a: Job, b: Job, changes: list[FileChange]) -> str:
    """The changes as one unified diff; files that are no text, or too long, are only named."""
    return "".join(line for change in changes for line in _lines(a, b, change))


def _lines(a: Job, b: Job, change: FileChange) -> Iterator[str]:
    before, after = _text(a, change.a), _text(b, change.b)
    names = [f"{side}/{change.path}" if there else "/dev/null" for side, there in (("a", change.a), ("b", change.b))]
    if before is None or after is None:
        yield f"Files {names[0]} and {names[1]} differ\n"
        return
    for line in difflib.unified_diff(before.splitlines(True), after.splitlines(True), names[0], names[1]):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _text(job: Job, file: dict[str, Any] | None) -> str | None:
    """The file's text; empty for a file that is not there, None for one that is no text or too long."""
    if file is None:
        return ""
    if file.get("link") is not None:
        return f"{file['link']}\n"
    if int(file["size"]) > MOST_BYTES:
        return None
    content = b"".join(job.api.get_bytes(f"/jobs/{job.id}/code/file", {"path": file["path"]}))
    try:
        return None if b"\0" in content else content.decode()
    except UnicodeDecodeError:
        return None


def _files(job: Job) -> dict[str, dict[str, Any]]:
    return {file["path"]: file for file in job.api.request("GET", f"/jobs/{job.id}/code")["files"]}


def _content(file: dict[str, Any] | None) -> tuple[Any, Any] | None:
    return None if file is None else (file["digest"], file.get("mode"))
