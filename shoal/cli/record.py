"""Where a job came from, what it ran in and what it read, as people read it: in short for `show`, or all of it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from shoal._lib.quantities import format_size
from shoal.cli.output import print_facts, print_table, printable

SHORT_COMMIT = 10
SHORT_DIGEST = 12
MOST_NODES = 8  # named in one line


def record_of(job: Mapping[str, Any]) -> dict[str, Any]:
    """What the last attempt that has a record ran in; empty before the first."""
    found = [attempt["record"] for attempt in job.get("attempts") or () if attempt.get("record")]
    return dict(found[-1]) if found else {}


def short_facts(job: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """A few lines for `shoal show`."""
    record = record_of(job)
    versions = [f"{name} {version}" for name, version in (record.get("frameworks") or {}).items()]
    inputs = [f"{name} {_given(one)}" for name, one in (record.get("inputs") or {}).items()]
    return [
        ("git", git_line((job.get("origin") or {}).get("git"))),
        ("sent from", _sent_from(job.get("origin") or {})),
        ("ran on", _ran_on(record.get("nodes") or {})),
        ("python", _python(record)),
        ("frameworks", ", ".join(versions)),
        ("inputs", ", ".join(inputs)),
    ]


def print_record(job: Mapping[str, Any], diff: str | None) -> None:
    """All of it, in plain blocks; the diff comes last."""
    origin, record = job.get("origin") or {}, record_of(job)
    print_facts(_origin_facts(origin))
    _block(("node", "host", "system", "kernel", "cpu", "cpus", "memory", "gpus", "driver"), _nodes(record))
    _block(("role", "command"), [(r, shlex.join(argv)) for r, argv in (record.get("commands") or {}).items()])
    names = [(role, " ".join(words)) for role, words in (record.get("environment") or {}).items()]
    _block(("role", "variables"), names)
    _block(("input", "address", "digest", "files", "size"), _inputs(record))
    versions = [
        ("interpreter", _python(record)),
        *(record.get("frameworks") or {}).items(),
        ("note", record.get("note")),
    ]
    if record:
        print()
        print_facts(versions)
    sources = record.get("sources") or {}
    packages = [(name, version, sources.get(name)) for name, version in sorted((record.get("packages") or {}).items())]
    _block(("package", "version", "from"), packages)
    _block(("node", "package", "version there"), _other_packages(record))
    if diff:
        print()
        print_lines(diff)


def print_lines(text: str) -> None:
    """A diff, line by line, without what could steer a terminal."""
    for line in text.splitlines():
        print("\t".join(map(printable, line.split("\t"))))


def git_line(git: Mapping[str, Any] | None) -> str:
    """`1a2b3c4d5e* main https://host/repo.git`, the star for changes that were not committed."""
    if not git:
        return ""
    commit = f"{str(git.get('commit') or 'no commit')[:SHORT_COMMIT]}{'*' if git.get('dirty') else ''}"
    untracked = len(git.get("untracked") or ())
    more = [f"{untracked} untracked" if untracked else "", str(git.get("note") or "")]
    words = [commit, str(git.get("branch") or ""), str(git.get("remote") or "")]
    return ", ".join(filter(None, [" ".join(filter(None, words)), *more]))


def _origin_facts(origin: Mapping[str, Any]) -> list[tuple[str, Any]]:
    git = origin.get("git") or {}
    return [
        ("commit", git.get("commit")),
        ("branch", git.get("branch")),
        ("remote", git.get("remote")),
        ("path", git.get("folder")),
        ("changed", " ".join(git.get("changed") or ())),
        ("untracked", " ".join(git.get("untracked") or ())),
        ("elsewhere", f"{git['elsewhere']} changed files that were not sent" if git.get("elsewhere") else None),
        ("note", git.get("note")),
        ("typed", shlex.join(origin.get("command") or ())),
        ("clone of", origin.get("clone_of")),
        ("sent from", _sent_from(origin)),
        ("folder", origin.get("folder")),
        ("client", f"Shoal {origin['shoal']}, Python {origin.get('python')}" if origin.get("shoal") else None),
    ]


def _sent_from(origin: Mapping[str, Any]) -> str:
    return "@".join(filter(None, [origin.get("user"), origin.get("host")]))


def _ran_on(nodes: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [_node_line(*one) for one in nodes.items()]
    more = [f"{len(lines) - MOST_NODES} more"] if len(lines) > MOST_NODES else []
    return ", ".join([*lines[:MOST_NODES], *more])


def _node_line(name: str, node: Mapping[str, Any]) -> str:
    host = node.get("host")
    return name if host in (None, "", name) else f"{name} ({host})"


def _python(record: Mapping[str, Any]) -> str:
    told = record.get("interpreter") or {}
    packages = len(record.get("packages") or ())
    return f"{told.get('version')} {told.get('path')}, {packages} packages" if told else ""


def _given(one: Mapping[str, Any]) -> str:
    mixed = ", mixed" if one.get("mixed") else ""
    return f"{one['digest'][:SHORT_DIGEST]} ({one['files']} files, {format_size(one['bytes'])}{mixed})"


def _nodes(record: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (
            name,
            *(node.get(fact) for fact in ("host", "system", "kernel", "cpu", "cpus")),
            format_size(node["memory"]) if node.get("memory") else None,
            ", ".join(node.get("gpus") or ()),
            node.get("driver"),
        )
        for name, node in (record.get("nodes") or {}).items()
    ]


def _inputs(record: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (name, one.get("address"), one["digest"] + (" mixed" if one.get("mixed") else ""), one["files"],
         format_size(one["bytes"]))
        for name, one in (record.get("inputs") or {}).items()
    ]  # fmt: skip


def _other_packages(record: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (node, package, version or "missing")
        for node, facts in (record.get("nodes") or {}).items()
        for package, version in (facts.get("packages") or {}).items()
    ]


def _block(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    if rows:
        print()
        print_table(columns, rows)
