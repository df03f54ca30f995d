"""`shoal nodes` and `shoal engine`: where jobs can run, and what is free there."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from shoal._lib.quantities import format_size
from shoal.cli.output import print_json, print_table

app = typer.Typer()
engine = typer.Typer(no_args_is_help=True)
app.add_typer(engine, name="engine", help="See the engines that run jobs.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def nodes(as_json: Json = False) -> None:
    """List the nodes with what they have and what is free.

    Examples:
    shoal nodes
    shoal nodes --json
    """
    from shoal.client.connect import connect

    found = connect(start=False).request("GET", "/nodes")["nodes"]
    if as_json:
        print_json(found)
        return
    columns = ("node", "engine", "address", "cpus", "free", "memory", "free", "gpus", "free", "gpu type", "labels")
    print_table(columns, map(_row, found), empty="no nodes")


@engine.command("ls")
def engine_list(as_json: Json = False) -> None:
    """List the engines this server can use.

    Example:
    shoal engine ls
    """
    from shoal.client.connect import connect

    found = connect(start=False).request("GET", "/engines")["engines"]
    if as_json:
        print_json(found)
        return
    print_table(("engine", "default", "nodes", "can"), map(_engine_row, found), empty="no engines")


def _row(node: dict[str, Any]) -> tuple[Any, ...]:
    gpus, free = node["gpus"], node["free"]
    return (
        node["name"],
        node["engine"],
        node["address"],
        f"{node['cpus']:g}",
        f"{free['cpu']:g}",
        format_size(node["memory"]),
        format_size(free["memory"]),
        len(gpus),
        len(free["gpus"]),
        ",".join(sorted({gpu["type"] for gpu in gpus})),
        ",".join(f"{name}={value}" for name, value in node["labels"].items()),
    )


def _engine_row(found: dict[str, Any]) -> tuple[Any, ...]:
    able = [name for name, yes in found["can"].items() if yes]
    return (found["name"], "yes" if found["default"] else None, found["nodes"], ",".join(able))
