"""`shoal stop` and `shoal rm`: ending jobs, and forgetting ended ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from shoal._lib.quantities import parse_duration
from shoal.cli.errors import report
from shoal.cli.output import print_json
from shoal.errors import BadSpec, ShoalError

app = typer.Typer()

Refs = Annotated[list[str], typer.Argument(metavar="JOB…", help="Ids, beginnings of ids, or names.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def stop(
    jobs: Refs,
    force: Annotated[bool, typer.Option("--force", help="Do not wait: end the processes at once.")] = False,
    grace: Annotated[
        str | None, typer.Option("--grace", metavar="DURATION", help="Time between SIGTERM and SIGKILL.")
    ] = None,
    message: Annotated[str | None, typer.Option("--message", "-m", metavar="TEXT", help="Why, for the record.")] = None,
    as_json: Json = False,
) -> None:
    """Stop jobs: SIGTERM, a pause for saving, then SIGKILL.

    Examples:
    shoal stop digits
    shoal stop 7f3k 9qm2 --grace 1m --message "wrong data"
    """
    from shoal.client.connect import connect
    from shoal.client.jobs import find

    pause = _seconds(grace)
    api = connect(start=False)

    def end(ref: str) -> Any:
        job = find(ref, api).stop(pause, force, message)
        if not as_json:
            print(f"{job.id}  {job.name}  {job.state}")
        return job.data

    _each(jobs, end, as_json)


@app.command()
def rm(
    jobs: Refs,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove ended jobs with their logs and outputs.

    Examples:
    shoal rm digits
    shoal rm 7f3k 9qm2 --yes
    """
    import sys

    from shoal.client.connect import connect
    from shoal.client.jobs import find

    api = connect(start=False)
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Remove {', '.join(jobs)} with logs and outputs?", abort=True)

    def remove(ref: str) -> Any:
        job = find(ref, api)
        job.remove()
        if not as_json:
            print(f"{job.id}  {job.name}  removed")
        return {"id": job.id, "name": job.name, "removed": True}

    _each(jobs, remove, as_json)


def _seconds(grace: str | None) -> float | None:
    if grace is None:
        return None
    try:
        return parse_duration(grace)
    except ValueError as wrong:
        raise BadSpec(f"--grace: {wrong}") from None


def _each(refs: list[str], act: Callable[[str], Any], as_json: bool) -> None:
    """Acts on every one; a fault with one does not spare the others, and shows in the exit code."""
    done: list[Any] = []
    worst = 0
    for ref in refs:
        try:
            done.append(act(ref))
        except ShoalError as wrong:
            worst = max(worst, report(wrong))
    if as_json:
        print_json(done)
    if worst:
        raise typer.Exit(worst)
