"""Following a job to its end: what is shown meanwhile, what Ctrl-C means, and the exit code it gives.

The lines come over one stream and the state over another, in a thread of its own that only feeds the view: when it
breaks, the lines go on and the outcome is still the server's.
"""

from __future__ import annotations

import select
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from shoal.cli.logs import Line
from shoal.cli.output import advice, duration_of, note, on_terminal, printable
from shoal.errors import ShoalError

if TYPE_CHECKING:
    from shoal.client.jobs import Job
    from shoal.client.lines import LogLine

INTERRUPTED = 130  # what a shell gives for Ctrl-C
TIMED_OUT = 124  # what timeout(1) gives
LEAVE = "l"
WONDER = 2.0  # seconds in the queue after which the reason is asked for, and asked again
_BY_REASON = {"user_stop": INTERRUPTED, "max_duration": TIMED_OUT, "overrun": TIMED_OUT}


class View(Protocol):
    """Where a followed job is shown."""

    def write(self, lines: Sequence[LogLine]) -> None: ...

    def update(self, job: dict[str, Any]) -> None:
        """Called from another thread, each time the job changed."""


class PlainView:
    """Prefixed lines; what changes beside them as remarks on stderr."""

    def __init__(self, quiet: bool, out: TextIO) -> None:
        self._line = Line(out=out)
        self._quiet = quiet
        self._said = ""

    def write(self, lines: Sequence[LogLine]) -> None:
        self._line.write(lines)

    def update(self, job: dict[str, Any]) -> None:
        waits = printable(str(job.get("message") or "")) if job.get("state") == "queued" else ""
        if waits and waits != self._said and not self._quiet:
            note(f"{job['id']} queued: {waits}")
        self._said = waits


def follow_to_end(job: Job, quiet: bool = False, out: TextIO | None = None) -> int:
    """Shows the job until it has ended and answers with its exit code, or until the user leaves it: 130.

    Lines and the summary go to `out`, stdout unless told otherwise.
    """
    over = threading.Event()
    try:
        with _view(job, quiet, out) as view:
            _start("watch", _watch, job, view)
            _start("wait", _ask_why, job, view, over)
            left = _read_lines(job, view)
    except KeyboardInterrupt:
        left = True
    finally:
        over.set()
    if left:
        note(
            f"{job.id} is left running; 'shoal logs --follow {job.id}' follows it again, 'shoal stop {job.id}' ends it"
        )
        return INTERRUPTED
    job.wait()
    if not quiet:
        print(summary(job.data), flush=True, file=out)
    return exit_code(job.data)


@contextmanager
def _view(job: Job, quiet: bool, out: TextIO | None) -> Iterator[View]:
    if on_terminal() and not quiet and out is None:
        from shoal.cli.live import LiveView

        with LiveView(job.data) as live:
            yield live
    else:
        yield PlainView(quiet, out or sys.stdout)


def _start(name: str, feed: Callable[..., None], job: Job, *more: Any) -> None:
    """A thread that feeds the view with a job of its own; when it breaks, the lines go on without it."""
    from shoal.client.jobs import Job as Own

    def run() -> None:
        try:
            feed(Own(job.api, job.data), *more)
        except ShoalError as gone:
            note(f"the state is no longer shown: {gone.message}")

    threading.Thread(target=run, daemon=True, name=f"shoal-{name}").start()


def _watch(job: Job, view: View) -> None:
    for seen in job.watch():
        view.update(seen.data)


def _ask_why(job: Job, view: View, over: threading.Event) -> None:
    """What a job waits for, once it has waited long enough for anyone to wonder."""
    while not over.wait(WONDER) and job.refresh().state == "queued":
        view.update({**job.data, "message": job.why()["message"]})


def _read_lines(job: Job, view: View) -> bool:
    """Shows lines until the end; whether the user left before it."""
    cursor: str | None = None
    while True:
        lines = job.logs(follow=True, cursor=cursor)
        try:
            for batch in lines.batches():
                view.write(batch)
                cursor = lines.cursor
            return False
        except KeyboardInterrupt:
            cursor = lines.cursor
            if not _go_on(job, view):
                return True


def _go_on(job: Job, view: View) -> bool:
    """Asks what Ctrl-C meant; off a terminal nobody can be asked, and a job is not lost to a closed window."""
    if not (on_terminal() and sys.stdin.isatty()):
        return False
    pause = getattr(view, "paused", None)
    with pause() if pause is not None else _nothing():
        answer = _ask(f"\n{job.id} ({job.name}): [l]eave it running, [s]top it, or [f]ollow on? [l] ")
    if answer.startswith("s"):
        job.stop(message="stopped with Ctrl-C")
        return True
    return answer.startswith("f")


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _ask(question: str) -> str:
    """The answer in lower case; a second Ctrl-C, or the end of input, leaves the job running."""
    print(question, end="", flush=True)
    try:
        # input() would miss a Ctrl-C that comes between its prompt and its read; here it is noticed at the next turn.
        while not select.select([sys.stdin], [], [], 0.2)[0]:
            continue
        return sys.stdin.readline().strip().lower() or LEAVE
    except KeyboardInterrupt:
        print()
        return LEAVE


def exit_code(job: dict[str, Any]) -> int:
    """0 for success, the rank's own code for a failure, 130 when stopped by a person, 124 by a time limit."""
    if job["state"] == "succeeded":
        return 0
    by_reason = _BY_REASON.get(str(job.get("reason")))
    return by_reason if by_reason is not None else int(job.get("exit_code") or 1)


def summary(job: dict[str, Any]) -> str:
    """The last line: what became of it, and after a failure why and what to do."""
    took = duration_of(job)
    said = f"{job['id']} {job['name']} {job['state']}{f' after {took}' if took else ''}"
    if job["state"] == "succeeded":
        return said
    why = ": ".join(part for part in (job.get("reason"), job.get("message")) if part)
    return printable(f"{said} ({why}). {advice(job)}".rstrip())
