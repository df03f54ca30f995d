"""`shoal stacks`: where the processes of a running job stand."""

from __future__ import annotations

from typing import Annotated

import typer

from shoal._lib.quantities import parse_duration
from shoal.cli.output import coloured, print_json, rank_prefix
from shoal.errors import BadSpec

app = typer.Typer()


@app.command()
def stacks(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Id, the beginning of one, or a name (the newest).")],
    ranks: Annotated[
        list[str] | None, typer.Argument(metavar="RANK…", help="Only of these: worker-0, server-1, or 0.")
    ] = None,
    timeout: Annotated[
        str, typer.Option("--timeout", metavar="DURATION", help="How long to wait for answers.")
    ] = "60s",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print where the threads of a job's processes stand, without stopping them.

    Needs py-spy in what the job runs in. What it says stays in the log of each rank, too.

    Examples:
    shoal stacks digits
    shoal stacks 7f3k worker-1 server-0
    """
    from shoal.client.connect import connect
    from shoal.client.jobs import find

    found = find(job, connect(start=False)).stacks(ranks or None, _seconds(timeout))
    if as_json:
        print_json(found)
        return
    width = max(map(len, found))
    for rank, text in found.items():
        for line in text.splitlines():
            print(f"{rank_prefix(rank, width, coloured())}{line}")


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as wrong:
        raise BadSpec(f"--timeout: {wrong}") from None
