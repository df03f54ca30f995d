"""A bar for bytes on their way: on a terminal, and only when there is something to wait for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

WORTH_A_BAR = 1 << 20  # bytes


@contextmanager
def transfer_bar(what: str, quiet: bool = False) -> Iterator[Callable[[int, int], None] | None]:
    """A callback for (bytes done, bytes in all); None where nobody looks. stderr, so that stdout stays clean."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    with ExitStack() as open_bar:
        show: Callable[[int, int], None] | None = None

        def progress(done: int, total: int) -> None:
            nonlocal show
            if show is None and total >= WORTH_A_BAR:
                show = _bar(what, open_bar)
            if show is not None:
                show(done, total)

        yield progress


def _bar(what: str, owner: ExitStack) -> Callable[[int, int], None]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = owner.enter_context(Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True))
    task = bar.add_task(what, total=None)
    return lambda done, total: bar.update(task, completed=done, total=total)
