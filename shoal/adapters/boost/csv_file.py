"""A text file with a row on each line: each worker parses only its own lines.

Stretches are cut by bytes, and nobody reads another's: a row belongs to the worker in whose range its first byte lies.
Only where a quoted cell goes over several lines can a file not be cut so; then every worker parses all of it and keeps
its share of the rows.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from shoal.adapters.boost.columns import Columns, numbers
from shoal.adapters.boost.errors import BadData
from shoal.adapters.boost.share import ALL, Share

DELIMITERS = ",;\t|"
AnyOf = Callable[[bool], bool]  # whether any worker says yes


@dataclass(frozen=True)
class Layout:
    """What the first line tells: the columns, what stands between them, and where the rows begin."""

    names: tuple[str, ...]
    delimiter: str
    start: int


def read(path: Path, share: Share, anyone: AnyOf, header: bool | None) -> Columns:
    layout = look(path, header)
    lines = own_lines(path, layout.start, share)
    if anyone(any(line.count(b'"') % 2 for line in lines)):
        rows = _parse(path, own_lines(path, layout.start, ALL), layout)
        rows = rows[share.rows(len(rows))]
    else:
        rows = _parse(path, lines, layout)
    cells = tuple(zip(*rows, strict=True)) or tuple(() for _ in layout.names)
    return Columns(layout.names, cells, len(rows))


def look(path: Path, header: bool | None) -> Layout:
    with open(path, "rb") as file:
        first = file.readline()
        start = file.tell()
    text = _decoded(path, [first])[0]
    if not text.strip():
        raise BadData(f"{path.name} is empty, or begins with an empty line; give a file with rows")
    delimiter = "\t" if path.suffix.lower() == ".tsv" else max(DELIMITERS, key=text.count)
    cells = [cell.strip() for cell in next(csv.reader([text], delimiter=delimiter))]
    named = header if header is not None else not any(_is_number(cell) for cell in cells)
    if not named:
        return Layout(tuple(map(str, range(len(cells)))), delimiter, 0)
    twice = sorted({cell for cell in cells if cells.count(cell) > 1})
    if twice:
        raise BadData(f"{path.name}: the column {twice[0]!r} occurs twice; give each a name of its own")
    return Layout(tuple(cells), delimiter, start)


def own_lines(path: Path, start: int, share: Share) -> list[bytes]:
    """This worker's lines from `start` on, without empty ones."""
    with open(path, "rb") as file:
        if share.in_turn:
            file.seek(start)
            return [line for line in file if line.strip()][share.rank :: share.size]
        span = share.rows(max(0, path.stat().st_size - start))
        low, high = (_line_start(file, start, start + offset) for offset in (span.start, span.stop))
        file.seek(low)
        return [line for line in BytesIO(file.read(high - low)) if line.strip()]


def _line_start(file: BinaryIO, start: int, offset: int) -> int:
    """Where the first line begins that begins at `offset` or behind it."""
    if offset <= start:
        return start
    file.seek(offset - 1)
    file.readline()
    return file.tell()


def _parse(path: Path, lines: Sequence[bytes], layout: Layout) -> list[list[str]]:
    rows = [row for row in csv.reader(_decoded(path, lines), delimiter=layout.delimiter) if row]
    for row in rows:
        if len(row) != len(layout.names):
            said = layout.delimiter.join(row)
            raise BadData(
                f"{path.name}: a row has {len(row)} cells instead of {len(layout.names)}: {said[:80]!r}; mend the row"
            )
    return rows


def _decoded(path: Path, lines: Sequence[bytes]) -> list[str]:
    try:
        return [line.decode("utf-8-sig") for line in lines]
    except UnicodeDecodeError as wrong:
        raise BadData(f"{path.name} is not text in UTF-8 ({wrong.object[:40]!r}); save it as UTF-8") from None


def _is_number(cell: str) -> bool:
    found = numbers([cell])
    return found is not None and cell != "" and bool(found[0] == found[0])
