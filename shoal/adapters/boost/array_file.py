"""Arrays of numpy's own, .npy (columns have numbers) and .npz (arrays have names), cut among the workers by rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from shoal.adapters.boost.columns import Columns
from shoal.adapters.boost.errors import BadData
from shoal.adapters.boost.share import Share


def read(path: Path, share: Share) -> Columns:
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as wrong:
        raise BadData(
            f"{path.name} cannot be read as numpy's: {wrong}; objects are not read, only numbers and texts"
        ) from None
    arrays = {name: found[name] for name in found.files} if hasattr(found, "files") else {"": found}
    counts = {len(array) for array in arrays.values() if array.ndim}
    if len(counts) != 1 or any(array.ndim not in (1, 2) for array in arrays.values()):
        shapes = ", ".join(f"{name or path.name} {array.shape}" for name, array in arrays.items())
        raise BadData(
            f"{path.name}: the arrays must have one row per sample, as many each, in 1 or 2 dimensions: {shapes}"
        )
    rows = share.rows(counts.pop())
    names: list[str] = []
    cells: list[Any] = []
    for name, array in arrays.items():
        own = np.asarray(array[rows])
        several = own.ndim == 2
        names += [f"{name}{number}" for number in range(own.shape[1])] if several else [name or "0"]
        cells += [_cells(own[:, number]) for number in range(own.shape[1])] if several else [_cells(own)]
    return Columns(tuple(names), tuple(cells), len(range(rows.start, rows.stop, rows.step or 1)))


def _cells(array: Any) -> Any:
    return array if array.dtype.kind in "fiub" else [str(cell) for cell in array.tolist()]
