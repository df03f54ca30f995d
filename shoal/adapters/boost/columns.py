"""Columns by name: cells as they were read, and what they are: numbers, with NaN for what is missing, or texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.adapters.boost.errors import BadData
from shoal.catalogue import nearest

Floats = NDArray[np.float64]
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})


@dataclass(frozen=True)
class Columns:
    """Some rows of a file, column by column; `cells` are arrays of numbers or sequences of texts."""

    names: tuple[str, ...]
    cells: tuple[Any, ...]
    count: int

    def find(self, key: str, named: str | int) -> int:
        """The number of the column called so, or with that number; BadData with the nearest name otherwise."""
        return find(self.names, key, named)


def find(names: Sequence[str], key: str, named: str | int) -> int:
    if isinstance(named, str) and named in names:
        return names.index(named)
    number = _number(named)
    if number is not None and -len(names) <= number < len(names):
        return number % len(names)
    near = nearest(str(named), names)
    shown = ", ".join(map(repr, names[:12])) + (" …" if len(names) > 12 else "")
    hint = f"did you mean {near!r}?" if near else f"there are {len(names)}: {shown}"
    raise BadData(f"{key}: {named!r} is not a column; {hint}")


def numbers(cells: Any) -> Floats | None:
    """The cells as numbers, what is missing as NaN; None when one of them is a text."""
    if isinstance(cells, np.ndarray):
        return cells.astype(np.float64) if cells.dtype.kind in "fiub" else None
    try:
        return np.array(cells, dtype=np.float64)
    except (ValueError, TypeError):
        pass
    try:
        return np.array([np.nan if is_missing(cell) else cell for cell in cells], dtype=np.float64)
    except (ValueError, TypeError):
        return None


def texts(cells: Any) -> list[str | None]:
    """The cells as texts, None for what is missing. A number reads as it would in a text file."""
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "fiub":
        return [None if cell != cell else f"{cell:g}" for cell in cells.tolist()]
    return [None if is_missing(cell) else str(cell).strip() for cell in cells]


def is_missing(cell: Any) -> bool:
    return cell is None or (isinstance(cell, str) and cell.strip().lower() in MISSING)


def distinct(cells: Iterable[str | None]) -> list[str]:
    return sorted({cell for cell in cells if cell is not None})


def codes(cells: Sequence[str | None], known: Sequence[str]) -> Floats:
    """Each text as its number among the known ones; NaN for what is missing or not known."""
    number = {text: float(index) for index, text in enumerate(known)}
    return np.array([np.nan if cell is None else number.get(cell, np.nan) for cell in cells], dtype=np.float64)


def _number(named: str | int) -> int | None:
    if isinstance(named, int):
        return named
    digits = named[1:] if named.startswith("-") else named
    return int(named) if digits.isdigit() else None
