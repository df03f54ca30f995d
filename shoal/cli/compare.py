"""`shoal compare`: one script under several strategies, the same budget for each, and the winner's name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal._lib.quantities import format_size, parse_duration
from shoal.cli.flags import AFTER, Folder, JobCommand, JobFile, Script, takes_job
from shoal.cli.output import note, percent, print_json, print_table
from shoal.errors import BadSpec

if TYPE_CHECKING:
    from shoal._lib.chart import Panel
    from shoal.job.compared import Comparison, Course, Mark

app = typer.Typer()

COLUMNS = ("strategy", "state", "best", "to goal", "steps", "sent", "per second", "waited", "staleness", "job")


@app.command(cls=JobCommand)
@takes_job(repeated=("strategy",))
def compare(
    ctx: typer.Context,
    flags: Mapping[str, Any],
    script: Script = None,
    file: JobFile = None,
    folder: Folder = None,
    budget: Annotated[str | None, typer.Option(metavar="DURATION", help="Stop each run after this long.")] = None,
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="Judge by this reported value; loss when left out.")
    ] = None,
    goal: Annotated[
        float | None, typer.Option(metavar="VALUE", help="Who reaches this first wins; else near the best of all.")
    ] = None,
    draw: Annotated[str, typer.Option(metavar="FILE", help="Where the curves go.")] = "compare.svg",
    suggest: Annotated[bool, typer.Option(help="Profile a few steps first, and see if the suggestion holds.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a script under several strategies, one after another, and say which is best for it on these machines.

    The script reports what it learns with run.report(loss=…) of shoal.train.

    Examples:
    shoal compare train.py --workers 2 --strategy allreduce --strategy ps-async --strategy local-sgd:every=16
    shoal compare train.py -w 4 --budget 2m --metric accuracy
    """
    from shoal._lib.chart import draw as drawn
    from shoal.cli.jobfile import typed_job
    from shoal.client.compare import STRATEGIES, Source, advise, remember, run_all, with_suggestion
    from shoal.client.connect import connect
    from shoal.home import Home

    chosen = list(flags.get("strategy") or STRATEGIES)
    typed = typed_job(script, file, ctx.meta[AFTER], {k: v for k, v in flags.items() if k != "strategy"}, folder)
    source = Source(typed.raw, typed.folder, typed.base)
    for text in chosen:
        source.under(text)  # what cannot be is said before anything runs
    seconds = None if budget is None else _seconds(budget)
    api = connect()
    advice = advise(api, source) if suggest else None
    found = run_all(
        api, source, chosen, budget=seconds, metric=metric, goal=goal,
        told=lambda job, text: note(f"{text}: {job.id}"),
    )  # fmt: skip
    if advice is not None:
        found = with_suggestion(found, advice)
    Path(draw).write_text(drawn(list(panels(found)), f"{typed.raw.get('script') or 'job'}: {found.metric}"))
    right, of = remember(Home.here(), str(typed.raw.get("script") or ""), found)
    if as_json:
        print_json({**found.to_dict(), "suggested_right": right, "suggested_in_all": of, "drawing": draw})
        return
    _print(found, right, of, draw)


def _seconds(budget: str) -> float:
    try:
        return parse_duration(budget)
    except ValueError as wrong:
        raise BadSpec(f"--budget: {wrong}") from None


def _print(found: Comparison, right: int, of: int, draw: str) -> None:
    print_table(COLUMNS, [_row(found, course) for course in found.courses])
    if found.winner is None:
        print(f"no winner: nobody reported {found.metric!r}, or nobody reached the goal; call run.report")
    else:
        print(f"winner: {found.winner} ({found.metric} {found.goal:.4g} first)")
    if found.suggested is not None:
        verdict = "right" if found.suggested == found.winner else "wrong"
        print(f"suggested: {found.suggested} ({verdict} this time, right in {right} of {of})")
    print(f"curves: {draw}")


def _row(found: Comparison, course: Course) -> Sequence[Any]:
    there = course.reached(found.metric, found.goal, found.rising) if found.winner else None
    last: Mark | None = course.marks[-1] if course.marks else None
    best = course.best(found.metric, found.rising)
    return (
        course.strategy,
        course.state,
        None if best is None else f"{best:.4g}",
        f"{there.seconds:.1f} s" if there else None,
        last.steps if last else None,
        format_size(last.sent) if last else None,
        f"{course.pace:.0f}",
        percent(course.waited),
        f"{course.staleness:.1f}",
        course.job,
    )


def panels(found: Comparison) -> Iterator[Panel]:
    """The metric against time, steps and bytes."""
    from shoal._lib.chart import Panel

    log = not found.rising and _spans_decades(found)
    axes = (("time", "seconds", lambda m: m.seconds), ("steps", "steps", lambda m: float(m.steps)),
            ("bytes", "MB sent", lambda m: m.sent / 1e6))  # fmt: skip
    for title, across, of in axes:
        lines = {c.strategy: [(of(mark), value) for mark, value in c.line(found.metric)] for c in found.courses}
        yield Panel(f"{found.metric} against {title}", across, found.metric, lines, log_up=log)


def _spans_decades(found: Comparison) -> bool:
    values = [value for course in found.courses for _, value in course.line(found.metric) if math.isfinite(value)]
    return bool(values) and min(values) > 0 and max(values) / min(values) > 30
