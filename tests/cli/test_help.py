"""Help texts as golden files. SHOAL_GOLDEN=write refreshes them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from shoal.cli.app import COMMANDS, app

GOLDEN = Path(__file__).parent / "golden"


def _walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from _walk(inner, (*path, name))


def _paths() -> list[tuple[str, ...]]:
    root = typer.main.get_command(app)
    context = root.make_context("shoal", [], resilient_parsing=True)
    found = [path for name in COMMANDS for path in _walk(root.get_command(context, name), (name,))]  # type: ignore[attr-defined]
    return [(), *found]


def _help(path: tuple[str, ...]) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "GITHUB_ACTIONS")}
    env = {**kept, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb", "LANG": "C.UTF-8"}
    command = [sys.executable, "-m", "shoal.cli", *path, "--help"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()).strip() + "\n"


@pytest.mark.parametrize("path", _paths(), ids=lambda path: "-".join(path) or "shoal")
def test_the_help_text_is_the_one_that_was_agreed(path: tuple[str, ...]) -> None:
    text = _help(path)
    file = GOLDEN / f"{'-'.join(('shoal', *path))}.txt"
    if os.environ.get("SHOAL_GOLDEN") == "write":
        file.write_text(text)
    assert text == file.read_text(), "the help text changed; look at it, then refresh with SHOAL_GOLDEN=write"


def test_no_golden_file_is_left_over() -> None:
    expected = {f"{'-'.join(('shoal', *path))}.txt" for path in _paths()}
    assert {file.name for file in GOLDEN.iterdir()} == expected


@pytest.mark.parametrize("path", [path for path in _paths() if path], ids="-".join)
def test_every_command_has_a_summary_of_one_sentence(path: tuple[str, ...]) -> None:
    text = (GOLDEN / f"{'-'.join(('shoal', *path))}.txt").read_text()
    summary = text.split("\n\n")[1].strip()
    assert re.fullmatch(r"[A-Z][^.]*(\.[^. ][^.]*)*\.", " ".join(summary.split())), summary


@pytest.mark.parametrize("path", [path for path in _paths() if path], ids="-".join)
def test_every_command_that_acts_shows_an_example(path: tuple[str, ...]) -> None:
    text = (GOLDEN / f"{'-'.join(('shoal', *path))}.txt").read_text()
    assert "Example" in text or "Commands" in text
