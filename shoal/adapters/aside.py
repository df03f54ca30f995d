"""Stepping aside for the real library: what is on the path by our packages' names gives way where that is installed.

Our folder comes before the interpreter's own packages, so our `horovod` is found first. It looks for another one behind
itself and, when there is one, puts that in its own place: whoever imports gets the real one, submodules included.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

_OURS = Path(__file__).with_name("horovod_path")


def step_aside(name: str, before: Callable[[], None] = lambda: None) -> bool:
    """Whether the real package of that name is there; then it has taken the place in `sys.modules`. `before` is called
    once it is known to be there and nothing of it is loaded yet."""
    spec = real(name)
    if spec is None or spec.loader is None:
        return False
    ours = sys.modules[name]
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        before()
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules[name] = ours
        raise
    return True


def real(name: str) -> ModuleSpec | None:
    """Where the package of that name lies that is not ours; None where there is none."""
    behind = [entry for entry in sys.path if os.path.realpath(entry or ".") != os.path.realpath(_OURS)]
    spec = PathFinder.find_spec(name, behind)
    return spec if spec is not None and spec.origin is not None else None  # a mere folder of that name is no package
