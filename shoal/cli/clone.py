"""`shoal clone` and `shoal diff`: a job again with changes, and what differs between two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from shoal.cli.flags import AFTER, JobCommand, takes_job
from shoal.cli.jobfile import typed
from shoal.cli.output import print_facts, print_json, print_table
from shoal.cli.show import ONCE

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


@app.command()
def diff(
    first: Annotated[str, typer.Argument(metavar="A")],
    second: Annotated[str, typer.Argument(metavar="B")],
    as_json: Json = False,
) -> None:
    """Show which keys differ between two jobs.

    Example:
    shoal diff 7f3k 9qm2
    """
    from shoal.client.connect import connect
    from shoal.client.jobs import find

    api = connect(start=False)
    jobs = [find(ref, api).data for ref in (first, second)]
    changes = differences(*(_comparable(job) for job in jobs))
    if as_json:
        print_json({key: {"a": a, "b": b} for key, a, b in changes})
    else:
        print_facts([(letter, f"{job['id']} {job['name']}") for letter, job in zip("ab", jobs, strict=True)])
        print_table(("key", "a", "b"), changes, empty="no difference")


def changes(spec: Mapping[str, Any], after: list[str] | None, flags: Mapping[str, Any]) -> dict[str, Any]:
    """The keys the flags and what stood behind `--` change; None for one they take out."""
    raw = typed(spec, None, after, flags)
    changed = {key: value for key, value in raw.items() if value != spec.get(key)}
    return {**changed, **{key: None for key in spec if key not in raw}}


def _comparable(job: Mapping[str, Any]) -> dict[str, Any]:
    """Specification plus code, flat: `resources.cpu`, `env.LR`."""
    spec = {key: value for key, value in job["spec"].items() if key not in ONCE}
    return flat({**spec, "code": job.get("manifest")})


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, Mapping):
            found.update(flat(item, f"{prefix}{key}."))
        elif item not in (None, [], ()):
            found[f"{prefix}{key}"] = item
    return found


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    keys = list(dict.fromkeys([*first, *second]))
    return [(key, first.get(key), second.get(key)) for key in keys if first.get(key) != second.get(key)]
