"""`python -m shoal.adapters.boost xgboost '{"data": "rows.csv", "label": "y"}'`: what the launchers start."""

from __future__ import annotations

import sys

from shoal.adapters.boost.run import run
from shoal.adapters.boost.task import read_task
from shoal.errors import ShoalError
from shoal.train.world import World


def main(framework: str, text: str) -> None:
    try:
        run(framework, read_task(text), World.read())
    except ShoalError as wrong:
        raise SystemExit(f"shoal: {wrong.message}") from None


if __name__ == "__main__":
    main(*sys.argv[1:])
