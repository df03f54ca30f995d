"""A Parquet file, cut among the workers by rows; each reads only the row groups that hold some of a stretch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from shoal.adapters.boost.columns import Columns
from shoal.adapters.boost.errors import BadData
from shoal.adapters.boost.share import Share


def read(path: Path, share: Share, ignore: tuple[str, ...]) -> Columns:
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
    names = tuple(name for name in file.schema_arrow.names if name not in ignore)
    table = _own(file, share, names)
    return Columns(names, tuple(_cells(path, name, table.column(name)) for name in names), table.num_rows)


def _own(file: Any, share: Share, names: tuple[str, ...]) -> Any:
    rows = share.rows(file.metadata.num_rows)
    if share.in_turn:
        return file.read(columns=list(names)).take(list(range(rows.start, rows.stop, rows.step)))
    groups, skipped, at = [], 0, 0
    for number in range(file.num_row_groups):
        count = file.metadata.row_group(number).num_rows
        if at < rows.stop and at + count > rows.start:
            groups.append(number)
        elif at + count <= rows.start:
            skipped += count
        at += count
    return file.read_row_groups(groups, columns=list(names)).slice(rows.start - skipped, rows.stop - rows.start)


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
