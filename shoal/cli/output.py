"""What goes to stdout: tables on a terminal, plain lines off it, JSON when asked for; times as people read them."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from shoal._lib.quantities import format_duration

NOTHING = "-"
STATE_STYLES = {
    "queued": "yellow",
    "starting": "cyan",
    "running": "blue",
    "stopping": "magenta",
    "succeeded": "green",
    "failed": "red",
    "stopped": "bright_black",
}
_NEVER_CUT = ("id", "state", "rank", "node", "age", "duration", "progress")
# Colours of ranks in merged logs; six that read well on light and dark backgrounds.
_RANK_COLOURS = (36, 32, 33, 35, 34, 31)


def on_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def coloured() -> bool:
    return on_terminal() and not os.environ.get("NO_COLOR")


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2 if on_terminal() else None, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], empty: str = "") -> None:
    """A Rich table on a terminal; off it one line per row, columns aligned, under a line of column names."""
    shown = [[_cell(value) for value in row] for row in rows]
    if not shown:
        note(empty)
    elif on_terminal():
        _rich_table(columns, shown)
    else:
        _plain_table(columns, shown)


def note(text: str) -> None:
    """A remark for a person: stderr, so that stdout stays what was asked for."""
    if text:
        print(text, file=sys.stderr)


def _cell(value: Any) -> str:
    return NOTHING if value is None or value == "" else printable(str(value))


def printable(text: str) -> str:
    """Without control characters: a message may quote what a foreign program printed."""
    return "".join(c if c.isprintable() else " " for c in text)


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.upper(), overflow="fold", no_wrap=column in _NEVER_CUT)
    for row in rows:
        table.add_row(*(Text(value, style=_style(column, value)) for column, value in zip(columns, row, strict=True)))
    Console().print(table)


def _style(column: str, value: str) -> str:
    return STATE_STYLES.get(value, "") if column == "state" else ""


def _plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [[column.upper() for column in columns], *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        print("  ".join(value.ljust(width) for value, width in zip(line, widths, strict=True)).rstrip())


def print_facts(facts: Iterable[tuple[str, Any]]) -> None:
    """One `name  value` line each; what is not known is left out."""
    known = [(name, printable(str(value))) for name, value in facts if value not in (None, "", [], {})]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        print(f"{name.ljust(width)}  {value}")


def duration_of(job: dict[str, Any], now: float | None = None) -> str:
    """How long it ran, or runs by now; nothing before it started."""
    started = job.get("started_at")
    if not started:
        return ""
    ended = job.get("ended_at") or (time.time() if now is None else now)
    return format_duration(max(0.0, ended - started))


def age(at: float | None, now: float | None = None) -> str:
    if not at:
        return ""
    return format_duration(max(0.0, (time.time() if now is None else now) - at))


def clock(at: float | None) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S") if at else ""


def advice(job: Mapping[str, Any]) -> str:
    """What to do next, with the job's id where the advice says JOB and the blamed rank for RANK: ready to be typed."""
    blamed = re.match(r"[\w.-]+-\d+(?= on )", str(job.get("message") or ""))
    text = str(job.get("advice") or "").replace(" --rank RANK", f" --rank {blamed[0]}" if blamed else "")
    return re.sub(r"\bJOB\b", str(job["id"]), text)


def percent(progress: float | None) -> str:
    return "" if progress is None else f"{progress * 100:.0f}%"


def rank_prefix(rank: str, width: int = 0, colour: bool = False) -> str:
    """`worker-0 | `, the rank in a colour of its own where colours are wanted."""
    padded = rank.ljust(width)
    if not colour:
        return f"{padded} | "
    code = _RANK_COLOURS[sum(rank.encode()) % len(_RANK_COLOURS)]
    return f"\x1b[{code}m{padded}\x1b[0m | "
