"""Where the ranks of a job stand: asked for, then picked out of its log, where their shepherds write it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from shoal._lib.clock import Deadline
from shoal.client.lines import rank_names
from shoal.contract import stacks_end, stacks_start

if TYPE_CHECKING:
    from shoal.client.jobs import Job
    from shoal.client.lines import LogLine

Ranks = str | int | Iterable[str | int] | None
LATE = "its stacks did not come within {:g} s; see with 'shoal show' whether it still runs"


def stacks_of(job: Job, path: str, rank: Ranks, timeout: float) -> dict[str, str]:
    """Rank → the stacks of its threads, or why there are none; of all ranks that run when none is named."""
    before = job.logs(tail=0)
    for _ in before:
        pass  # only the place where the log ends now
    asked = job.api.request("POST", path, json={"ranks": rank_names(rank) or ""})
    found: dict[str, str] = {}
    lines = job.logs(rank=asked["ranks"], follow=True, cursor=before.cursor, deadline=Deadline(timeout))
    for name, text in told(lines, asked["mark"]):
        found[name] = text
        if len(found) == len(asked["ranks"]):
            break
    lines.close()
    return {name: found.get(name, LATE.format(timeout)) for name in asked["ranks"]}


def told(lines: Iterator[LogLine], mark: str) -> Iterator[tuple[str, str]]:
    """Each rank with what was written for the asking of that mark; others may ask at the same time."""
    heard: dict[str, list[str]] = {}
    for line in lines:
        start = stacks_start(line.rank)
        if not line.text.startswith(start):
            continue
        text = line.text[len(start) :]
        if text == stacks_end(mark):
            yield line.rank, "\n".join(heard.pop(line.rank, []))
        elif text.startswith(stacks_end("")):
            heard.pop(line.rank, None)
        else:
            heard.setdefault(line.rank, []).append(text)
