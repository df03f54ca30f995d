"""`python -m shoal.adapters.mpi rank PROGRAM …` is a worker; mpirun starts `relay` and `agent HOST COMMAND …`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from shoal.errors import ShoalError


def main(arguments: Sequence[str]) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    what, *rest = arguments
    try:
        if what == "rank":
            from shoal.adapters.mpi.rank import Rank

            return Rank(os.environ, rest).run()
        from shoal.adapters.mpi import mpirun

        return mpirun.relay(os.environ) if what == "relay" else mpirun.agent(os.environ, rest)
    except ShoalError as error:
        print(f"shoal.adapters.mpi: {error.message}", file=sys.stderr)
        return getattr(error, "exit_code", 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
