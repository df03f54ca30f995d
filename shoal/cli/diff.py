"""`shoal diff`: what differs between two jobs, in what was asked for, in the code, and in what they ran in and read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.output import note, print_facts, print_json, print_table
from shoal.cli.record import SHORT_DIGEST, print_lines, record_of
from shoal.cli.show import ONCE

if TYPE_CHECKING:
    from shoal.client.code import FileChange

app = typer.Typer()

Change = tuple[str, Any, Any]  # key, value of a, value of b

_GIT = ("commit", "branch", "remote", "dirty")
_SENT = ("host", "user", "python", "shoal")
_MACHINE = ("host", "system", "kernel", "cpu", "cpus", "memory", "gpus", "driver")


@app.command()
def diff(
    first: Annotated[str, typer.Argument(metavar="A")],
    second: Annotated[str, typer.Argument(metavar="B")],
    code: Annotated[bool, typer.Option("--code", help="Also print the lines of code that differ.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what differs between two jobs: keys, code, commit, packages, machines and inputs.

    Examples:
    shoal diff 7f3k 9qm2
    shoal diff 7f3k 9qm2 --code
    """
    from shoal.client.code import changed_files, changed_lines
    from shoal.client.connect import connect
    from shoal.client.jobs import find

    api = connect(start=False)
    a, b = find(first, api), find(second, api)
    files = changed_files(a, b)
    lines = changed_lines(a, b, files) if code else None
    found = list(changes_between(a.data, b.data))
    if as_json:
        told: dict[str, Any] = {key: {"a": ours, "b": theirs} for key, ours, theirs in found}
        print_json({**told, **_code_json(a.data, b.data, files, lines)})
        return
    print_facts([(letter, f"{job.id} {job.name}") for letter, job in (("a", a), ("b", b))])
    rows = [(key, _short(key, ours), _short(key, theirs)) for key, ours, theirs in [*found, *map(_code_row, files)]]
    print_table(("key", "a", "b"), rows, empty="no difference")
    for letter, job in (("a", a), ("b", b)):
        if rows and not record_of(job.data).get("packages"):
            note(f"{letter} has no record of packages (it did not run, or not in Python); they are not compared")
    if lines:
        print()
        print_lines(lines)
    elif files:
        note(f"the lines that differ: shoal diff {first} {second} --code")


def changes_between(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Change]:
    """All but the code, in the order in which people ask: what was wanted, where it came from, what it met."""
    asked = differences(_asked(a), _asked(b))
    yield from asked
    uploaded = bool(a.get("manifest") and b.get("manifest"))
    yield from _origins(a.get("origin"), b.get("origin"), _GIT if uploaded else (*_GIT, "diff_digest"))
    # Commands follow from what was asked; they are news only when that is the same.
    same = all(key == "name" for key, _, _ in asked)
    yield from _records(record_of(a), record_of(b), commands=same)


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys as one: `resources.cpu`, `env.LR`."""
    found: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            found.update(flat(item, f"{prefix}{key}."))
        elif item not in (None, [], ()):
            found[f"{prefix}{key}"] = item
    return found


def differences(first: Mapping[str, Any], second: Mapping[str, Any], prefix: str = "") -> list[Change]:
    keys = list(dict.fromkeys([*first, *second]))
    return [(prefix + key, first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)]


def _asked(job: Mapping[str, Any]) -> dict[str, Any]:
    return flat({key: value for key, value in job["spec"].items() if key not in ONCE})


def _origins(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None, of_git: Sequence[str]) -> Iterator[Change]:
    """Only where both are known. What was typed is left out: the keys above say what it meant."""
    if not a or not b:
        return
    ours, theirs = a.get("git") or {}, b.get("git") or {}
    yield from differences({k: ours.get(k) for k in of_git}, {k: theirs.get(k) for k in of_git}, "git.")
    yield from differences({k: a.get(k) for k in _SENT}, {k: b.get(k) for k in _SENT}, "sent.")


def _records(a: Mapping[str, Any], b: Mapping[str, Any], commands: bool) -> Iterator[Change]:
    if not a or not b:
        return
    yield from differences(_machines(a), _machines(b), "machine.")
    yield from differences(_digests(a), _digests(b), "inputs.")
    if commands:
        yield from differences(a.get("commands") or {}, b.get("commands") or {}, "command.")
    if not a.get("packages") or not b.get("packages"):
        return
    yield from differences(a.get("interpreter") or {}, b.get("interpreter") or {}, "python.")
    frameworks = differences(a.get("frameworks") or {}, b.get("frameworks") or {}, "frameworks.")
    yield from frameworks
    told = {(ours, theirs) for _, ours, theirs in frameworks}
    named = {key.partition(".")[2] for key, _, _ in frameworks}
    for key, ours, theirs in differences(a["packages"], b["packages"]):
        if key not in named or (ours, theirs) not in told:
            yield f"packages.{key}", ours, theirs


def _machines(record: Mapping[str, Any]) -> dict[str, Any]:
    """Each fact of all nodes together: nodes alike say it once."""
    nodes = list((record.get("nodes") or {}).values())
    return {fact: sorted({str(node[fact]) for node in nodes if node.get(fact)}) for fact in _MACHINE}


def _digests(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one["digest"] for name, one in (record.get("inputs") or {}).items()}


def _code_json(
    a: Mapping[str, Any], b: Mapping[str, Any], files: list[FileChange], lines: str | None
) -> dict[str, Any]:
    if not files:
        return {}
    told = {change.path: {"a": _digest(change.a), "b": _digest(change.b)} for change in files}
    more = {} if lines is None else {"diff": lines}
    return {"code": {"a": a.get("manifest"), "b": b.get("manifest"), "files": told, **more}}


def _code_row(change: FileChange) -> Change:
    return f"code {change.path}", _digest(change.a), _digest(change.b)


def _digest(file: Mapping[str, Any] | None) -> str | None:
    return None if file is None else str(file["digest"])


def _short(key: str, value: Any) -> Any:
    """Digests and commits short enough for a table; lists as words."""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return (
        str(value)[:SHORT_DIGEST] if value and key.startswith(("code ", "inputs.", "git.commit", "git.diff")) else value
    )
