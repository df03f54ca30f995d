"""`shoal jobs`: the list, newest first, with filters. The fast path: it loads nothing but the HTTP client."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shoal.catalogue import nearest
from shoal.cli.output import age, duration_of, percent, print_json, print_table
from shoal.errors import BadSpec, UnknownName

app = typer.Typer()

STATES = ("queued", "starting", "running", "stopping", "succeeded", "failed", "stopped")
COLUMNS = ("id", "name", "state", "reason", "owner", "framework", "workers", "progress", "age", "duration")


@app.command()
def jobs(
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            "-s",
            metavar="STATE",
            help=f"Only in these states: {', '.join(STATES)}.",
            autocompletion=lambda: list(STATES),
        ),
    ] = None,
    mine: Annotated[bool, typer.Option("--mine", help="Only your own (an administrator sees everybody's).")] = False,
    every: Annotated[bool, typer.Option("--all", "-a", help="All of them, not only the newest.")] = False,
    project: Annotated[str | None, typer.Option("--project", metavar="NAME", help="Only of this project.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", metavar="WORD", help="Only with this tag.")] = None,
    name: Annotated[
        str | None, typer.Option("--name", "-n", metavar="TEXT", help="Only with this in the name.")
    ] = None,
    framework: Annotated[
        str | None, typer.Option("--framework", metavar="NAME", help="Only of this framework.")
    ] = None,
    limit: Annotated[str, typer.Option("--limit", "-l", metavar="COUNT", help="How many, newest first.")] = "50",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List jobs, newest first.

    Examples:
    shoal jobs --state running --state queued
    shoal jobs --all --tag nightly --json
    """
    from shoal.client import jobs as client
    from shoal.client.connect import connect

    states, most = _states(state or []), None if every else _count(limit)
    api = connect(start=False)
    owner = api.request("GET", "/whoami")["name"] if mine else None
    found = [
        job.data
        for job in client.jobs(
            api=api,
            state=states or None,
            owner=owner,
            project=project,
            name=name,
            tag=tag,
            framework=framework,
            limit=most,
        )
    ]
    if as_json:
        print_json(found)
    else:
        print_table(COLUMNS, map(_row, found), empty="no jobs; start one with 'shoal run SCRIPT'")


def _states(given: list[str]) -> list[str]:
    words = [word for text in given for word in text.split(",") if word]
    for word in words:
        if word not in STATES:
            raise UnknownName("state", word, STATES, nearest(word, STATES))
    return words


def _count(limit: str) -> int:
    if not limit.isdigit() or int(limit) < 1:
        raise BadSpec(f"--limit: {limit!r} is not a count; write a whole number from 1, or --all")
    return int(limit)


def _row(job: dict[str, Any]) -> tuple[Any, ...]:
    return (
        job["id"],
        job["name"],
        job["state"],
        job.get("reason"),
        job.get("owner"),
        job.get("framework"),
        job.get("workers"),
        percent(job.get("progress")),
        age(job.get("created_at")),
        duration_of(job),
    )
