"""The live view of a followed job on a terminal: log lines scroll above, one line per rank stands below."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shoal.cli.logs import Line
from shoal.cli.output import STATE_STYLES, duration_of, printable
from shoal.cli.progress import fraction, progress_text

if TYPE_CHECKING:
    from shoal.client.lines import LogLine

MOST_RANKS = 12
BAR = 20  # columns
_RANK_STYLES = {"waiting": "yellow", "running": "blue", "ended": "green", "gone": "red"}


class LiveView:
    """Drawn four times a second from what was last heard; the terminal is given back on leaving."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._job = job
        self._last: dict[str, str] = {}
        self._lock = threading.Lock()
        self._line = Line(colour=True)
        self._console = Console(highlight=False)
        self._live = self._fresh()

    def _fresh(self) -> Live:
        return Live(console=self._console, get_renderable=self.render, refresh_per_second=4, transient=True)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The terminal as it is, for a question."""
        self._live.stop()
        yield
        self._live = self._fresh()
        self._live.start()

    def write(self, lines: Sequence[LogLine]) -> None:
        with self._lock:
            self._last.update((line.rank, line.text) for line in lines if line.text.strip())
        # Text, never markup: "[rank 1]" is what the script printed. Its own colours are kept.
        text = Text.from_ansi("\n".join(self._line.text(line) for line in lines))
        self._console.print(text, soft_wrap=True)

    def update(self, job: dict[str, Any]) -> None:
        with self._lock:
            self._job = job

    def render(self) -> Table:
        with self._lock:
            job, last = self._job, dict(self._last)
        whole = Table.grid(expand=True)
        whole.add_row(_headline(job))
        ranks = job.get("ranks") or []
        if ranks:
            whole.add_row(_ranks(ranks[:MOST_RANKS], last))
        if len(ranks) > MOST_RANKS:
            whole.add_row(Text(f"… and {len(ranks) - MOST_RANKS} more ranks", style="dim"))
        return whole


def _headline(job: dict[str, Any]) -> Text:
    state = str(job.get("state"))
    parts: list[str | tuple[str, str]] = [
        f"{job['id']} {job['name']} ",
        (state, STATE_STYLES.get(state, "")),
        f" {duration_of(job)}",
    ]
    if state == "queued" and job.get("message"):
        parts.append((f"  {printable(job['message'])}", "dim"))
    if (job.get("attempt") or 1) > 1:
        parts.append((f"  attempt {job['attempt']}", "yellow"))
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _ranks(ranks: Sequence[dict[str, Any]], last: dict[str, str]) -> Table:
    grid = Table.grid(padding=(0, 2), expand=True)
    for ratio in (None, None, None, None, 1):
        grid.add_column(ratio=ratio, no_wrap=True, overflow="ellipsis")
    for rank in ranks:
        part = fraction(rank.get("progress"))
        state = str(rank.get("state"))
        grid.add_row(
            Text(rank["name"]),
            Text(state, style=_RANK_STYLES.get(state, "")),
            ProgressBar(total=1.0, completed=part, width=BAR) if part is not None else Text(""),
            Text(progress_text(rank.get("progress"))),
            Text(printable(Text.from_ansi(last.get(rank["name"], "")).plain), style="dim"),
        )
    return grid
