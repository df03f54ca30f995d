"""`shoal run`, `submit` and `try`: from what was typed to a job on the queue, followed or not, or tried here first."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.flags import AFTER, Folder, JobCommand, JobFile, Script, takes_job
from shoal.cli.output import note, print_json

if TYPE_CHECKING:
    from shoal.client.jobs import Job

app = typer.Typer()

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but the job's own lines.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command(cls=JobCommand)
@takes_job
def run(
    ctx: typer.Context,
    flags: Mapping[str, Any],
    script: Script = None,
    file: JobFile = None,
    folder: Folder = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Submit only; do not follow.")] = False,
    quiet: Quiet = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the job as JSON at the end; its lines go to stderr.")
    ] = False,
) -> None:
    """Run a script, a command or a job file as one distributed job, follow it and leave with its exit code.

    Starts a server on this machine if none runs. Ctrl-C asks whether to leave the job running.

    Examples:
    shoal run train.py --workers 2
    shoal run train.py -w 4 --cpu 1 --memory 2GiB -- --epochs 5
    shoal run --workers 2 -- python -c 'print("hello")'
    shoal run job.yaml --name tuesday
    shoal run --framework xgboost --data rows.csv --label y --valid 0.2 --params max_depth=4,eta=0.1 -w 2
    """
    from shoal.cli.follow import follow_to_end

    job = send(script, file, folder, ctx.meta[AFTER], flags, quiet)
    if detach:
        print_sent(job, as_json)
        return
    if not quiet:
        note(f"{job.id} ({job.name}) at {job.api.url}")
    code = follow_to_end(job, quiet, sys.stderr if as_json else None)
    if as_json:
        print_json(job.data)
    raise typer.Exit(code)


@app.command(cls=JobCommand)
@takes_job
def submit(
    ctx: typer.Context,
    flags: Mapping[str, Any],
    script: Script = None,
    file: JobFile = None,
    folder: Folder = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but the id.")] = False,
    as_json: Json = False,
) -> None:
    """Put a job on the queue and print its id; takes what 'shoal run' takes.

    Examples:
    shoal submit train.py --workers 4 --priority high
    JOB=$(shoal submit job.yaml --quiet)
    """
    job = send(script, file, folder, ctx.meta[AFTER], flags, quiet)
    if quiet and not as_json:
        print(job.id)
    else:
        print_sent(job, as_json)


@app.command("try", cls=JobCommand)
@takes_job
def try_here(
    ctx: typer.Context,
    flags: Mapping[str, Any],
    script: Script = None,
    file: JobFile = None,
    folder: Folder = None,
    quiet: Quiet = False,
) -> None:
    """Try the identical job here, one process per role and a minute at most, before it goes to the queue.

    Examples:
    shoal try train.py --workers 64 --gpu 0
    shoal try job.yaml
    """
    from shoal.cli.follow import follow_to_end
    from shoal.cli.jobfile import typed_job
    from shoal.cli.transfer import transfer_bar
    from shoal.client.trial import SECONDS, good, try_job

    typed = typed_job(script, file, ctx.meta[AFTER], flags, folder)
    with transfer_bar("sending", quiet) as progress:
        job = try_job(typed.raw, folder=typed.folder, base=typed.base, progress=progress)
    code = follow_to_end(job, quiet)
    if job.ended and good(job):
        note(
            "" if quiet else f"it runs here (one process per role, {SECONDS:g} s at most); queue it with 'shoal submit'"
        )
        code = 0
    raise typer.Exit(code)


def send(
    script: str | None,
    file: str | None,
    folder: str | None,
    after: list[str] | None,
    flags: Mapping[str, Any],
    quiet: bool,
) -> Job:
    """Checks the job, then connects (starting a server if none runs), sends the code and submits."""
    from shoal.cli.jobfile import typed_job
    from shoal.cli.transfer import transfer_bar
    from shoal.client.connect import connect
    from shoal.client.jobs import Job

    ready = typed_job(script, file, after, flags, folder).draft()
    api = connect()
    with transfer_bar("sending", quiet) as progress:
        return Job(api, ready.send(api, progress))


def print_sent(job: Job, as_json: bool) -> None:
    if as_json:
        print_json(job.data)
    else:
        print(f"{job.id}  {job.name}  {job.state}")
        note(f"follow it: shoal logs --follow {job.id}")
