"""Python reads this file when it starts, in XGBoost jobs only: `xgboost.collective` is taught where the tracker is.

Nothing is imported before the script does so. A sitecustomize of the interpreter's own still runs.
"""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path

NAME = "xgboost.collective"


class Finder:
    """Stands in the way of one import, once."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_and_teach(module):  # type: ignore[no-untyped-def]
            run(module)
            from shoal.adapters.xgboost import teach

            teach(module)

        spec.loader.exec_module = run_and_teach  # type: ignore[method-assign]
        return spec


def run_the_other() -> None:
    """The next sitecustomize on the path, which this one hides."""
    here = Path(__file__).parent.resolve()
    others = [path for path in sys.path if path and Path(path).resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.insert(0, Finder())
run_the_other()
