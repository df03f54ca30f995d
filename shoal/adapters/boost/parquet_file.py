"""A Parquet file, cut among the workers by rows; each reads only the row groups that hold some of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from shoal.adapters.boost.columns import Columns
from shoal.adapters.boost.errors import BadData


def read(path: Path, rank: int, size: int, ignore: tuple[str, ...]) -> Columns:
    try:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise BadData(
            f"{path.name}: reading Parquet needs pyarrow in the job's interpreter; install it there"
        ) from None
    try:
        file = ParquetFile(path)
    except (ArrowInvalid, OSError) as wrong:
        raise BadData(f"{path.name} cannot be read as Parquet: {wrong}") from None
    total = file.metadata.num_rows
    low, high = total * rank // size, total * (rank + 1) // size
    groups, skipped, at = [], 0, 0
    for number in range(file.num_row_groups):
        rows = file.metadata.row_group(number).num_rows
        if at < high and at + rows > low:
            groups.append(number)
        elif at + rows <= low:
            skipped += rows
        at += rows
    names = tuple(name for name in file.schema_arrow.names if name not in ignore)
    table = file.read_row_groups(groups, columns=list(names)).slice(low - skipped, high - low)
    cells = tuple(_cells(path, name, table.column(name)) for name in names)
    return Columns(names, cells, high - low)


def _cells(path: Path, name: str, column: Any) -> Any:
    from pyarrow import types

    kind = column.type
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind):
        found = [np.nan if cell is None else float(cell) for cell in column.to_pylist()] if column.null_count else None
        return np.array(found if found is not None else column.to_numpy(), dtype=np.float64)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind):
        return column.to_pylist()
    raise BadData(
        f"{path.name}: the column {name!r} is of type {kind}, from which trees do not learn; make it a number or a "
        f"text, or leave it out with params ignore=[{name!r}]"
    )
