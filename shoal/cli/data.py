"""`shoal data` and `shoal get`: files to and from the server, and what a job left."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from shoal._lib.quantities import format_size
from shoal.cli.output import clock, print_json, print_table
from shoal.cli.transfer import transfer_bar

app = typer.Typer()
data = typer.Typer(no_args_is_help=True)
app.add_typer(data, name="data", help="Move files to and from the server.")

Address = Annotated[str, typer.Argument(metavar="ADDRESS", help="pool://me/PATH, or job://ID/PATH.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
POOL = "pool://me/"


@app.command("get")
def get(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Id, the beginning of one, or a name (the newest).")],
    target: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="Where to; a folder with the job's name if left out.")
    ] = None,
    path: Annotated[str, typer.Option("--path", metavar="PATH", help="Only this file or folder of the job.")] = "",
    quiet: Quiet = False,
) -> None:
    """Fetch what a job wrote, also of a failed one; goes on where a broken fetch stopped.

    Examples:
    shoal get digits
    shoal get 7f3k results --path checkpoints
    """
    from shoal.client import data as client
    from shoal.client.connect import connect
    from shoal.client.jobs import find

    api = connect(start=False)
    found = find(job, api)
    with transfer_bar("fetching", quiet) as progress:
        folder = target or Path(f"{found.name}-{found.id}")
        place = client.get(api, f"job://{found.id}/{path}", f"{folder}/", progress)  # a single file goes into it, too
    print(place)


@data.command("put")
def data_put(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A file or a folder.")],
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="pool://me/PATH; one that ends with / keeps the file's name.")
    ] = POOL,
    quiet: Quiet = False,
) -> None:
    """Send a file or a folder into your pool; sends only what is not there yet.

    Examples:
    shoal data put digits/ pool://me/digits
    shoal data put model.pt pool://me/models/
    """
    from shoal.client import data as client
    from shoal.client.connect import connect

    client.parse_address(address, "pool")
    with transfer_bar("sending", quiet) as progress:
        print(client.put(connect(), source, address, progress))


@data.command("get")
def data_get(
    address: Address,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Where to.")] = Path(),
    quiet: Quiet = False,
) -> None:
    """Fetch a file or a folder; goes on where a broken fetch stopped.

    Examples:
    shoal data get pool://me/digits digits/
    shoal data get job://7f3k/model.pt
    """
    from shoal.client import data as client
    from shoal.client.connect import connect

    client.parse_address(address)
    with transfer_bar("fetching", quiet) as progress:
        print(client.get(connect(start=False), address, target, progress))


@data.command("ls")
def data_list(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="pool://me/PATH, or job://ID/PATH.")] = POOL,
    as_json: Json = False,
) -> None:
    """List files in your pool or in a job.

    Examples:
    shoal data ls
    shoal data ls job://7f3k/ --json
    """
    from shoal.client import data as client
    from shoal.client.connect import connect

    client.parse_address(address)
    found = list(client.ls(connect(start=False), address))
    if as_json:
        print_json([file._asdict() for file in found])
    else:
        rows = ((format_size(file.size), clock(file.mtime), file.path) for file in found)
        print_table(("size", "changed", "path"), rows, empty=f"{address} holds nothing")


@data.command("rm")
def data_remove(
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="pool://me/PATH: a file, or a folder with all in it.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove files from your pool.

    Example:
    shoal data rm pool://me/digits --yes
    """
    from shoal.client import data as client
    from shoal.client.connect import connect
    from shoal.errors import NotFound

    client.parse_address(address, "pool")
    api = connect(start=False)
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Remove {address}?", abort=True)
    count = client.rm(api, address)
    if not count:
        raise NotFound(f"{address} holds nothing; see what there is with 'shoal data ls'")
    print(f"{count} removed")
