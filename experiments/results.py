"""What an experiment leaves: its tables as Markdown, its plot as SVG, its numbers as JSON. Knows nothing of training.

    python experiments/NAME.py [--quick] [--out FOLDER]

prints the tables and writes NAME.svg and NAME.json into the folder. The numbers in the documentation are those of
`experiments/measured/`; `markdown` turns them into the tables that stand there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from shoal._lib.chart import Panel, draw

Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """Rows under a head. A None is something that did not happen."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Result:
    """Everything an experiment found."""

    name: str
    title: str
    tables: Sequence[Table]
    panels: Sequence[Panel]
    settings: dict[str, Any]
    data: dict[str, Any] = field(default_factory=dict)  # what tests and other plots may want


def options(about: str, **switches: str) -> argparse.Namespace:
    """The command line of every experiment; `switches` are further ones, with their meaning. One thread per process."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes: the shape, not the figures")
    parser.add_argument("--out", type=Path, default=Path("outputs"), metavar="FOLDER", help="default: outputs")
    for name, meaning in switches.items():
        parser.add_argument(f"--{name}", action="store_true", help=meaning)
    given = parser.parse_args()
    given.began = (time.perf_counter(), time.process_time())
    return given


def leave(given: argparse.Namespace, result: Result) -> None:
    """Prints the tables; writes the plot and the numbers."""
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / f"{result.name}.svg").write_text(draw(result.panels, result.title), encoding="utf-8")
    numbers = {
        "name": result.name,
        "quick": given.quick,
        "machine": machine(),
        "wall_seconds": round(time.perf_counter() - given.began[0], 1),
        "cpu_seconds": round(time.process_time() - given.began[1], 1),
        "settings": result.settings,
        "tables": [asdict(table) for table in result.tables],
        "data": result.data,
    }
    (given.out / f"{result.name}.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    print("\n".join(markdown(table) for table in result.tables))


def markdown(table: Table) -> str:
    """The table with its title above it."""
    lines = [f"**{table.title}**", "", _row(table.head), "|" + "---|" * len(table.head)]
    return "\n".join([*lines, *(_row([_shown(cell) for cell in row]) for row in table.rows), ""])


def machine() -> str:
    cores, python = os.cpu_count(), platform.python_version()
    return f"{cores} cores ({platform.machine()}), Python {python}, torch {torch.__version__}"


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _shown(cell: Cell) -> str:
    if cell is None:
        return "never"
    if isinstance(cell, float):
        return f"{cell:.3g}" if abs(cell) < 100 else f"{cell:,.0f}"
    return f"{cell:,}" if isinstance(cell, int) else cell
