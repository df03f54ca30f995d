"""`shoal show`: one job with its ranks, attempts, events and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.cli.output import advice, clock, duration_of, note, print_facts, print_json, print_table
from shoal.errors import BadSpec

if TYPE_CHECKING:
    from shoal.client.jobs import Job

app = typer.Typer()

EVENTS = 20
ONCE = ("key", "owner")  # what names one submission, not what is run


@app.command()
def show(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Id, the beginning of one, or a name (the newest).")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_yaml: Annotated[bool, typer.Option("--yaml", help="Print its job file.")] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Print all that is known of where it came from and what it ran in.")
    ] = False,
) -> None:
    """Show a job: its ranks, attempts, last events, what it ran in and what to do next.

    Examples:
    shoal show digits
    shoal show 7f3k --yaml > again.yaml
    shoal show 7f3k --record
    """
    from shoal.client.connect import connect
    from shoal.client.jobs import find

    if as_yaml and (as_json or record):
        raise BadSpec(f"--yaml and {'--json' if as_json else '--record'} contradict each other; give one of them")
    found = find(job, connect(start=False))
    if as_yaml:
        print(job_file(found.spec), end="")
        return
    if record:
        _show_record(found, as_json)
        return
    events = list(found.events())
    if as_json:
        print_json({**found.data, "events": events})
    else:
        _print(found.data, events)


def _show_record(found: Job, as_json: bool) -> None:
    from shoal.cli.record import print_record, record_of

    git = found.origin.get("git")
    diff = found.diff() if git else None
    if as_json:
        origin = {**found.origin, "git": {**git, "diff": diff}} if git else found.origin
        print_json({"id": found.id, "origin": origin, "record": record_of(found.data) or None})
    else:
        print_record(found.data, diff)


def job_file(spec: dict[str, Any]) -> str:
    """The specification as a job file, without what is empty and what names this one submission."""
    import yaml

    kept = {key: value for key, value in spec.items() if value not in (None, {}, [], "") and key not in ONCE}
    return str(yaml.safe_dump(kept, sort_keys=False, allow_unicode=True))


def _print(job: dict[str, Any], events: list[dict[str, Any]]) -> None:
    print_facts(_facts(job))
    if job.get("ranks"):
        print()
        print_table(
            ("rank", "state", "node", "pid", "exit", "restarts", "progress", "message"), map(_rank, job["ranks"])
        )
    if len(job.get("attempts") or ()) > 1:
        print()
        columns = ("attempt", "started", "ended", "reason", "exit", "message")
        print_table(columns, map(_attempt, job["attempts"]))
    if events:
        print()
        print_table(("time", "event", "reason", "message"), map(_event, events[-EVENTS:]))
        if len(events) > EVENTS:
            note(f"{len(events) - EVENTS} earlier events: shoal show {job['id']} --json")


def _facts(job: dict[str, Any]) -> list[tuple[str, Any]]:
    from shoal.cli.record import short_facts

    return [
        ("id", job["id"]),
        ("name", job["name"]),
        ("state", job["state"]),
        ("reason", job.get("reason")),
        ("message", job.get("message")),
        ("next", advice(job)),
        ("owner", job.get("owner")),
        ("project", job.get("project")),
        ("framework", job.get("framework")),
        ("strategy", job.get("strategy")),
        ("workers", job.get("workers")),
        ("attempt", job.get("attempt")),
        ("exit code", job.get("exit_code")),
        ("created", clock(job.get("created_at"))),
        ("started", clock(job.get("started_at"))),
        ("ended", clock(job.get("ended_at"))),
        ("duration", duration_of(job)),
        *short_facts(job),
    ]


def _rank(rank: dict[str, Any]) -> tuple[Any, ...]:
    from shoal.cli.progress import progress_text

    return (
        rank["name"],
        rank.get("state"),
        rank.get("node"),
        rank.get("pid"),
        f"signal {rank['signal']}" if rank.get("signal") else rank.get("exit_code"),
        rank.get("incarnation") or None,
        progress_text(rank.get("progress")),
        rank.get("message"),
    )


def _attempt(attempt: dict[str, Any]) -> tuple[Any, ...]:
    return (
        attempt.get("number"),
        clock(attempt.get("created_at") or attempt.get("started_at")),
        clock(attempt.get("ended_at")),
        attempt.get("reason"),
        attempt.get("exit_code"),
        attempt.get("message"),
    )


def _event(event: dict[str, Any]) -> tuple[Any, ...]:
    return (clock(event["at"]), event["kind"], event.get("reason"), event.get("message"))
