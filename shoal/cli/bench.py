"""`shoal bench`: the door to the measurements in shoal.bench."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal.errors import MissingExtra

app = typer.Typer()


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(
    ctx: typer.Context,
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
    try:
        from shoal.bench import main
    except ImportError as missing:
        raise MissingExtra("command", "bench", str(missing.name), None) from missing
    arguments = [*(names or []), *ctx.args, *(["--json"] if as_json else [])]
    raise typer.Exit(int(main(arguments) or 0))
