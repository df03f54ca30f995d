"""`python -m shoal.adapters.sklearn SCRIPT [ARGUMENTS]` is the chief, `… --worker [BYTES]` one of its workers."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from shoal.adapters import script
from shoal.adapters.sklearn.place import Place

SHARE = 4  # a worker keeps arrays in at most a fourth of its memory
NO_JOBLIB = "framework sklearn needs joblib, and {} has none ({}); install scikit-learn there, or name an environment"


def main(arguments: Sequence[str]) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        import joblib  # type: ignore[import-untyped]  # noqa: F401
    except ImportError as missing:
        print(NO_JOBLIB.format(sys.executable, missing), file=sys.stderr)
        return 2
    if arguments[:1] == ["--worker"]:
        return _work(int(arguments[1]) if len(arguments) > 1 else None)
    from shoal.adapters.sklearn import backend

    backend.use_everywhere()
    backend.office()
    return script.run(arguments[0], arguments[1:])


def _work(memory: int | None) -> int:
    from shoal.adapters.sklearn.worker import Worker

    place = Place.read()
    if place is None:
        print("a worker needs a chief; it is started by Shoal, as role 'worker' of framework sklearn", file=sys.stderr)
        return 2
    whole = memory or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // place.mates()
    return Worker(place, whole // SHARE).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
