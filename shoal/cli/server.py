"""`shoal server`: starts, stops and looks at the server of this SHOAL_HOME."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.cli.output import clock, note, print_facts, print_json
from shoal.home import Home

app = typer.Typer()
server = typer.Typer(no_args_is_help=True)
app.add_typer(server, name="server", help="Start, stop and look at the server.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _option(flag: str, metavar: str, text: str, panel: str | None = None) -> Any:
    return typer.Option(flag, metavar=metavar, help=text, rich_help_panel=panel, show_default=False)


@server.command("start")
def server_start(
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay, until Ctrl-C.")] = False,
    host: Annotated[str | None, _option("--host", "ADDRESS", "Listen here; other than loopback needs TLS.")] = None,
    port: Annotated[str | None, _option("--port", "NUMBER", "That of the last start if left out.")] = None,
    nodes: Annotated[str | None, _option("--nodes", "COUNT", "Present this machine as so many nodes.")] = None,
    cpus: Annotated[str | None, _option("--cpus", "CORES", "Per node; counted if left out.")] = None,
    memory: Annotated[str | None, _option("--memory", "SIZE", "Per node; counted if left out.")] = None,
    gpus: Annotated[str | None, _option("--gpus", "COUNT", "Per node; counted if left out.")] = None,
    shares: Annotated[str | None, _option("--shares", "COUNT", "Processes that ask for no CPU, per node.")] = None,
    labels: Annotated[str | None, _option("--labels", "K=V,…", "Of every node: rack=r1,disk=ssd.")] = None,
    engine: Annotated[str | None, _option("--engine", "NAME", "For jobs that name none.")] = None,
    database: Annotated[str | None, _option("--database", "URL", "SQLite under SHOAL_HOME if left out.")] = None,
    tls_cert: Annotated[Path | None, _option("--tls-cert", "FILE", "Certificate, PEM.")] = None,
    tls_key: Annotated[Path | None, _option("--tls-key", "FILE", "Its key, PEM.")] = None,
    behind_proxy: Annotated[bool, typer.Option("--behind-proxy", help="A proxy in front speaks TLS.")] = False,
    as_json: Json = False,
) -> None:
    """Start a server on this machine and return once it answers.

    Examples:
    shoal server start
    shoal server start --nodes 2 --cpus 2 --gpus 4
    shoal server start --foreground --host 0.0.0.0 --database postgresql+psycopg://shoal@db/shoal
    """
    from shoal.client.connect import here
    from shoal.server.process import command, environment, start
    from shoal.server.settings import read_settings

    numbers = {"port": port, "nodes": nodes, "cpus": cpus, "memory": memory, "gpus": gpus, "shares": shares}
    names = {"host": host, "labels": labels, "engine": engine, "database": database}
    safety = {"tls_cert": _absolute(tls_cert), "tls_key": _absolute(tls_key), "behind_proxy": behind_proxy or None}
    given = {**numbers, **names, **safety}
    options = {name: value for name, value in given.items() if value is not None}
    home = Home.here()
    read_settings(home, options)  # so that a wrong flag is answered here, not in the server's log
    if foreground:
        _become(home, command(home, options), environment(options))
    running = start(home, options)
    if as_json:
        print_json(asdict(running))
        return
    print(f"server {running.url}  pid {running.pid}  home {home.root}")
    if running.fingerprint:
        print(f"fingerprint {running.fingerprint}; others set it as SHOAL_FINGERPRINT")
    note(f"note: {here(start=False).request('GET', '/server')['identity_note']}")


@server.command("stop")
def server_stop(as_json: Json = False) -> None:
    """Stop the server of this SHOAL_HOME; jobs keep running and are taken up by the next one.

    Example:
    shoal server stop
    """
    from shoal.server.process import stop

    stopped = stop(Home.here())
    if as_json:
        print_json({"stopped": stopped is not None, "pid": stopped.pid if stopped else None})
    else:
        print(f"server {stopped.url} stopped" if stopped else "no server was running")


@server.command("status")
def server_status(as_json: Json = False) -> None:
    """Say whether a server runs on this SHOAL_HOME, and where; leaves with 1 if none does.

    Example:
    shoal server status --json
    """
    from shoal.server.process import answers, status

    home = Home.here()
    running = status(home)
    well = running is not None and answers(running)
    isolation = _isolation() if well else None
    if as_json:
        known = asdict(running) if running else {"url": None, "pid": None, "version": None}
        state = {"running": running is not None, "answers": well, "isolation": isolation, "home": str(home.root)}
        print_json({**known, **state})
    elif running is not None:
        facts = [(name, getattr(running, name)) for name in ("url", "pid", "version", "fingerprint")]
        kept = f"{isolation['mode']}: {isolation['why']}" if isolation else None
        last = [("started", clock(running.started_at)), ("isolation", kept), ("answers", "yes" if well else "no")]
        print_facts([*facts, *last])
    else:
        print(f"no server runs on {home.root}; start it with 'shoal server start'")
    if not well:
        raise typer.Exit(1)


def _isolation() -> dict[str, str] | None:
    """How the server keeps jobs apart; None when it does not let us ask."""
    from shoal.client.connect import here
    from shoal.errors import ShoalError

    try:
        told: dict[str, str] = here(start=False).request("GET", "/server")["isolation"]
    except ShoalError:
        return None
    return told


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.expanduser().absolute()


def _become(home: Home, line: list[str], variables: dict[str, str]) -> None:
    """The server instead of this process, so that signals reach it; in its home, because -m looks for modules here."""
    home.create()
    sys.stdout.flush()
    os.chdir(home.root)
    os.execve(line[0], line, variables)
