"""`shoal frameworks`: which strategies each framework has, with which roles, and why it has no others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from shoal.catalogue import nearest
from shoal.cli.output import print_json, print_table
from shoal.errors import UnknownName

app = typer.Typer()


@app.command()
def frameworks(
    name: Annotated[str | None, typer.Argument(help="One framework, with what each of its roles does.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the frameworks with their strategies and roles.

    Examples:
    shoal frameworks
    shoal frameworks tensorflow
    """
    from shoal.client.connect import connect

    found = connect(start=False).request("GET", "/frameworks")["frameworks"]
    known = {row["name"]: row for row in found}
    if name is not None and name not in known:
        raise UnknownName("framework", name, list(known), nearest(name, known))
    if as_json:
        print_json(found if name is None else known[name])
    elif name is None:
        print_table(("framework", "strategies", "usual", "how its processes find each other"), map(_row, found))
    else:
        columns = ("strategy", "role", "count", "runs", "ends the job", "a lost one", "what it does")
        print_table(columns, _roles(known[name]))
        if reasons := sorted(set(known[name]["refused"].values())):
            print(f"\nOther strategies are refused: {reasons[0]}.")


def _row(row: dict[str, Any]) -> tuple[Any, ...]:
    own = [one["name"] for one in row["strategies"] if one["name"] != "native"]
    names = "all" if not row["refused"] else ", ".join(own or ["native"])
    return (row["name"], names, row["usual"], row["says"])


def _roles(row: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    for strategy in row["strategies"]:
        for role in strategy["roles"]:
            runs = "Shoal's own" if role["ours"] else "the script"
            count = str(role["count"]) if role["count"] else "on request"
            yield (strategy["name"], role["role"], count, runs, role["leads"], role["on_lost"], role["says"])
