"""`shoal clone`: a job again, with changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from shoal.cli.flags import AFTER, JobCommand, takes_job
from shoal.cli.jobfile import typed

app = typer.Typer()

Ref = Annotated[str, typer.Argument(metavar="JOB", help="Id, the beginning of one, or a name (the newest).")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command(cls=JobCommand)
@takes_job
def clone(
    ctx: typer.Context,
    flags: Mapping[str, Any],
    job: Ref,
    follow: Annotated[bool, typer.Option("--follow", help="Follow it, as 'shoal run' does.")] = False,
    as_json: Json = False,
) -> None:
    """Submit a job again with the same code, changed by flags.

    Examples:
    shoal clone 7f3k
    shoal clone digits --workers 4 --name digits-4 --follow
    """
    from shoal.cli.follow import follow_to_end
    from shoal.cli.run import print_sent
    from shoal.client.connect import connect
    from shoal.client.jobs import find

    original = find(job, connect())
    made = original.clone(**changes(original.spec, ctx.meta[AFTER], flags))
    if follow:
        raise typer.Exit(follow_to_end(made))
    print_sent(made, as_json)


def changes(spec: Mapping[str, Any], after: list[str] | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The keys the flags and what stood behind `--` change; None for one they take out."""
    raw = typed(spec, None, after, flags)
    changed = {key: value for key, value in raw.items() if value != spec.get(key)}
    return {**changed, **{key: None for key in spec if key not in raw}}
