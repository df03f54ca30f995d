"""`shoal bench`: the door to the measurements in shoal.bench."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.catalogue import Catalogue

app = typer.Typer()

# By name, because doors do not import each other.
DOORS = Catalogue("command", {"bench": "shoal.bench:main"}, {"bench": "dev"})


@app.command()
def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]…", help="Figures, or how their names begin.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line per figure.")] = False,
) -> None:
    """Measure Shoal on this machine, next to its peers.

    Examples:
    shoal bench
    shoal bench launch list --json
    """
    main = DOORS.load("bench")
    raise typer.Exit(main(names or [], as_json))
