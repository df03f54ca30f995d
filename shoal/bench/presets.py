"""Interpreters of frameworks that Shoal does without, for measurements: presets, built on first use and kept."""

from __future__ import annotations

from pathlib import Path

from shoal._lib.venvs import BuildFailed, Recipe, Venvs
from shoal.environments import PRESETS
from shoal.errors import StartFailed
from shoal.home import ENVIRONMENTS, cache_folder


def python_of(preset: str, cache: Path | None = None) -> str:
    """The preset's Python, held until this process ends; StartFailed with pip's words when it cannot be built."""
    row = PRESETS[preset]
    recipe = Recipe(preset, lines=row.lines, bare=row.bare, pythons=row.pythons)
    try:
        return str(Venvs((cache or cache_folder()) / ENVIRONMENTS).use(recipe, lambda line: None).python)
    except BuildFailed as failed:
        raise StartFailed(f"{preset} could not be built: {failed}") from failed
