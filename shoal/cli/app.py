"""All commands by name, each loaded when it is used, and what becomes of an error: a message, never a traceback."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from shoal import __version__
from shoal.catalogue import nearest
from shoal.cli.errors import report
from shoal.errors import UnknownName

# In the order of a day's work, which is the order of `shoal --help`.
COMMANDS = {
    "run": "shoal.cli.run",
    "submit": "shoal.cli.run",
    "try": "shoal.cli.run",
    "plan": "shoal.cli.plan",
    "compare": "shoal.cli.compare",
    "jobs": "shoal.cli.jobs",
    "show": "shoal.cli.show",
    "logs": "shoal.cli.logs",
    "why": "shoal.cli.plan",
    "stacks": "shoal.cli.stacks",
    "stop": "shoal.cli.ends",
    "rm": "shoal.cli.ends",
    "clone": "shoal.cli.clone",
    "diff": "shoal.cli.diff",
    "get": "shoal.cli.data",
    "data": "shoal.cli.data",
    "frameworks": "shoal.cli.frameworks",
    "env": "shoal.cli.env",
    "nodes": "shoal.cli.nodes",
    "engine": "shoal.cli.nodes",
    "user": "shoal.cli.people",
    "token": "shoal.cli.people",
    "alert": "shoal.cli.alert",
    "server": "shoal.cli.server",
    "doctor": "shoal.cli.doctor",
    "bench": "shoal.cli.bench",
}


class Commands(TyperGroup):
    """Loads the module of a command when that command is used: `shoal jobs` does not pay for `shoal run`."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name])
        return typer.main.get_group(module.app).commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            raise UnknownName("command", name, list(COMMANDS), nearest(name, COMMANDS))
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="shoal",
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="A first job: shoal run train.py --workers 2",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"shoal {__version__}")
        raise typer.Exit


@app.callback()
def shoal(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Runs a training script as one distributed job."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help(), end="")


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and answers with its exit code; whatever goes wrong ends as a message on stderr."""
    try:
        code = typer.main.get_command(app).main(list(arguments), prog_name="shoal", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        return _reader_left()
    except Exception as wrong:
        return report(wrong)


def _reader_left() -> int:
    """`shoal logs … | head`: the reader has seen enough. Python would complain about it once more while it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
