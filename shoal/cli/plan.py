"""`shoal plan` and `shoal why`: what would be started, and what a job waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal._lib.quantities import format_size
from shoal.cli.flags import AFTER, Folder, JobCommand, JobFile, Script, takes_job
from shoal.cli.output import advice, print_facts, print_json, print_table

if TYPE_CHECKING:
    from shoal.cli.jobfile import Typed

app = typer.Typer()

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command(cls=JobCommand)
@takes_job
def plan(
    ctx: typer.Context,
    flags: Mapping[str, Any],
    script: Script = None,
    file: JobFile = None,
    folder: Folder = None,
    suggest: Annotated[
        bool, typer.Option("--suggest", help="Profile a few steps in one process and name a strategy for it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what would be started, and whether it fits, without starting anything.

    Examples:
    shoal plan train.py --workers 4 --cpu 2
    shoal plan job.yaml --json
    shoal plan train.py --workers 4 --suggest
    """
    from shoal.cli.jobfile import typed_job
    from shoal.client.connect import connect

    typed = typed_job(script, file, ctx.meta[AFTER], flags, folder)
    if suggest:
        _suggest(typed, as_json)
        return
    found = typed.draft().plan(connect())
    if as_json:
        print_json(found)
    else:
        _print_plan(found)


@app.command()
def why(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Id, the beginning of one, or a name (the newest).")],
    as_json: Json = False,
) -> None:
    """Say why a job is where it is: what it waits for, or why it ended.

    Example:
    shoal why digits
    """
    from shoal.client.connect import connect
    from shoal.client.jobs import find

    found = find(job, connect(start=False)).why()
    if as_json:
        print_json(found)
        return
    print(f"{found['state']}: {found['message']}")
    facts = [
        ("rule", found.get("rule")),
        ("position", found.get("position")),
        ("before it", ", ".join(found.get("before") or [])),
        ("next", "" if found["state"] == "queued" else advice(found)),  # what it says there is said here
    ]
    print_facts(facts)


def _suggest(typed: Typed, as_json: bool) -> None:
    """The ranking and the reasoning, from a profiled run of a few steps."""
    from dataclasses import asdict

    from shoal.client.compare import Source, advise
    from shoal.client.connect import connect

    typed.draft()  # what is wrong with the job is said before anything runs
    found = advise(connect(), Source(typed.raw, typed.folder, typed.base))
    if as_json:
        print_json({"suggested": found.best, **asdict(found)})
        return
    for reason in found.reasons:
        print(f"- {reason}")
    print()
    columns = ("strategy", "a step", "of it exchange", "worth")
    best = found.ranking[0].worth
    print_table(
        columns,
        (
            (one.strategy, f"{one.step * 1e3:.3g} ms", f"{one.exchange * 1e3:.3g} ms", f"{one.worth / best:.2f}")
            for one in found.ranking
        ),
    )
    print(f"suggested: {found.best}")


def _print_plan(found: Mapping[str, Any]) -> None:
    totals = found.get("totals") or {}
    print_facts([(key, found.get(key)) for key in ("name", "framework", "engine")] + [("in all", _asks(totals))])
    print()
    placed = _placed(found.get("placement") or [])
    print_table(("role", "count", "asks for", "lost rank", "nodes"), (_role(role, placed) for role in found["roles"]))
    for line in found.get("notes") or []:
        print(f"note: {line}")
    print(f"fit: {found.get('why') or ('it can start at once' if found.get('fits_now') else 'not now')}")


def _placed(placement: Iterable[Mapping[str, Any]]) -> dict[str, set[str]]:
    """The nodes of each role, for a job that could start now."""
    nodes: dict[str, set[str]] = {}
    for berth in placement:
        nodes.setdefault(str(berth["slot"]).rpartition("-")[0], set()).add(str(berth["node"]))
    return nodes


def _role(role: Mapping[str, Any], placed: Mapping[str, set[str]]) -> tuple[Any, ...]:
    nodes = ", ".join(sorted(placed.get(role["name"], ())))
    return (role["name"], role["count"], _asks(role.get("resources") or {}), role.get("on_lost"), nodes)


def _asks(asks: Mapping[str, Any]) -> str:
    """`4 processes, 2 CPU, 4.0 GiB, 1 GPU a100`: what is asked for, in words."""
    words = []
    if asks.get("processes"):
        words.append(f"{asks['processes']:g} processes")
    if asks.get("cpu"):
        words.append(f"{asks['cpu']:g} CPU" + (" (a hard cap)" if asks.get("cpu_quota") else ""))
    if asks.get("memory"):
        words.append(format_size(asks["memory"]))
    if asks.get("gpu"):
        words.append(f"{asks['gpu']:g} GPU {asks.get('gpu_type') or ''}".strip())
    return ", ".join(words)
