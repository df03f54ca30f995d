"""`python -m shoal.train.ps`: one parameter server, as a job (or the first worker under torchrun) starts it.

The process that is started keeps a child that serves and a spare; see `spare`. Everything it needs is in the
environment, as `shoal.contract` names it.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import socket
import sys
from collections.abc import Sequence

from shoal.errors import ShoalError
from shoal.train.ps import spare
from shoal.train.ps.place import Place
from shoal.train.wire.host import listen

_log = logging.getLogger("shoal.train")


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    try:
        place = Place.read(os.environ)
        if asked.child:
            from shoal.train.ps.child import run

            listener, control, parent = (int(number) for number in asked.child.split(","))
            return run(place, listener, control, parent, asked.until_left)
        with _bound(place) as own:
            forward = ["--until-left", str(asked.until_left)] if asked.until_left else []
            return spare.Supervisor(place.name, own, spare.command(*forward), asked.spares).run()
    except ShoalError as error:
        print(f"shoal.train.ps: {error.message}", file=sys.stderr)
        return 2


def _bound(place: Place) -> socket.socket:
    """The reserved port at the address that the roster names; at all addresses where that one is not of this machine,
    as behind a translated address."""
    try:
        return listen(place.host, place.port)
    except OSError as failed:
        if failed.errno == errno.EADDRNOTAVAIL:
            _log.warning("%s: %s is no address of this machine; listening on all", place.name, place.host)
            return listen("", place.port)
        raise ShoalError(
            f"{place.name} cannot listen at {place.host}:{place.port} ({failed}); "
            "is another program there? start the job again to get another port"
        ) from failed


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m shoal.train.ps", description="One parameter server of a Shoal job."
    )
    parser.add_argument("--until-left", type=int, default=0, metavar="N", help="end when N workers have come and left")
    parser.add_argument("--spares", type=int, default=1, choices=(0, 1), help="warm processes ready to take over")
    parser.add_argument("--child", help=argparse.SUPPRESS)  # listener, control socket, parent: set by the parent
    return parser


if __name__ == "__main__":
    sys.exit(main())
