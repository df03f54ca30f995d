"""`python -m shoal.server`: a server in the foreground, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from shoal.errors import ServerRunning, ShoalError
from shoal.home import Home
from shoal.server.process import ALREADY


def _flags() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m shoal.server", description="Runs a server in the foreground.")
    parser.add_argument("--home", type=Path, help="SHOAL_HOME; ~/.shoal when left out")
    parser.add_argument("--host", help="address to listen on; loopback when left out, TLS on any other")
    parser.add_argument("--port", type=int, help="that of the last start when left out")
    parser.add_argument("--nodes", type=int, help="present this machine as so many nodes")
    parser.add_argument("--cpus", type=float, help="cores per node")
    parser.add_argument("--memory", help="memory per node, such as 16GiB")
    parser.add_argument("--gpus", type=int, help="GPUs per node")
    parser.add_argument("--shares", type=int, help="processes that ask for no CPU, per node")
    parser.add_argument("--labels", metavar="K=V,…", help="labels of every node, such as rack=r1,disk=ssd")
    parser.add_argument("--engine", help="where jobs run that name no engine")
    parser.add_argument("--database", metavar="URL", help="sqlite:////… or postgresql+psycopg://…")
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate, PEM")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its key, PEM")
    parser.add_argument("--behind-proxy", action="store_true", default=None, help="a proxy in front speaks TLS")
    return parser


def main(arguments: list[str] | None = None) -> int:
    flags: dict[str, Any] = vars(_flags().parse_args(arguments))
    given: Path | None = flags.pop("home")
    home = Home(given.expanduser().absolute()) if given else Home.here()
    # Imported only now, so that a wrong flag is answered at once.
    from shoal.server.serve import serve

    try:
        serve(home, flags)
    except ServerRunning as running:
        print(running.message, file=sys.stderr)
        return ALREADY
    except ShoalError as wrong:
        print(f"the server cannot start: {wrong.message}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
