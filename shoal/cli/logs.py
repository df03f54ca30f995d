"""`shoal logs`: what the ranks printed, merged in time order, live or after the end."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from shoal.cli.output import coloured, rank_prefix
from shoal.errors import BadSpec

if TYPE_CHECKING:
    from shoal.client.lines import LogLine

app = typer.Typer()


@app.command()
def logs(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Id, the beginning of one, or a name (the newest).")],
    rank: Annotated[
        list[str] | None, typer.Option("--rank", "-r", metavar="RANK", help="Only of these: worker-0, server-1, or 0.")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="WHEN", help="Only newer than 20m, or than 2026-01-31T14:00.")
    ] = None,
    tail: Annotated[str | None, typer.Option("--tail", "-t", metavar="COUNT", help="Only the last lines.")] = None,
    grep: Annotated[str | None, typer.Option("--grep", "-g", metavar="REGEX", help="Only lines that match.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Stay, and show new lines as they come.")] = False,
    attempt: Annotated[
        str | None, typer.Option("--attempt", metavar="NUMBER", help="Of this attempt only; of all if left out.")
    ] = None,
    no_prefix: Annotated[bool, typer.Option("--no-prefix", help="Without the rank before each line.")] = False,
    times: Annotated[bool, typer.Option("--time", help="With the time before each line.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Print what a job's ranks printed, merged in time order.

    Examples:
    shoal logs digits --follow
    shoal logs 7f3k --rank worker-1 --tail 50
    shoal logs 7f3k --grep 'loss|nan' --since 20m --time
    """
    from shoal.client.connect import connect
    from shoal.client.jobs import find

    last = None if tail is None else _count("--tail", tail, 0)
    pattern = _pattern(grep)
    which = None if attempt is None else _count("--attempt", attempt, 1)
    show = Line(prefix=not no_prefix, times=times, as_json=as_json, colour=coloured())
    lines = find(job, connect(start=False)).logs(rank, since, last, pattern, follow, attempt=which)
    for batch in lines.batches():
        show.write(batch)


@dataclass(slots=True)
class Line:
    """How one line of a log is written."""

    prefix: bool = True
    times: bool = False
    as_json: bool = False
    colour: bool = False
    out: TextIO | None = None  # stdout
    width: int = 0

    def write(self, lines: Sequence[LogLine]) -> None:
        """A batch at once: a job that prints a lot must not wait for the terminal line by line."""
        out = self.out or sys.stdout
        out.write("".join(f"{self.text(line)}\n" for line in lines))
        out.flush()

    def text(self, line: LogLine) -> str:
        if self.as_json:
            return json.dumps(line._asdict(), ensure_ascii=False)
        self.width = max(self.width, len(line.rank))
        when = f"{datetime.fromtimestamp(line.at):%Y-%m-%d %H:%M:%S.%f}"[:-3] + " " if self.times else ""
        prefix = rank_prefix(line.rank, self.width, self.colour) if self.prefix else ""
        return f"{when}{prefix}{line.text}"


def _count(flag: str, text: str, low: int) -> int:
    if not text.isdigit() or int(text) < low:
        raise BadSpec(f"{flag}: {text!r} is not a count; write a whole number from {low}")
    return int(text)


def _pattern(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        re.compile(text)
    except re.error as wrong:
        raise BadSpec(
            f"--grep: {text!r} is not a regular expression ({wrong}); put a backslash before special characters"
        ) from None
    return text
