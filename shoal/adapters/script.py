"""Runs a script as the interpreter itself would: as `__main__`, with its own arguments and its own folder first on the
path. What a launcher has to set up before the first line of a script is set up by whoever calls this.
"""

from __future__ import annotations

import io
import sys
import types
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import TracebackType

FAILED = 1  # exit status of a script that raised


def run(script: str, arguments: Sequence[str]) -> int:
    """The exit status; SystemExit and KeyboardInterrupt pass. The module stays `__main__` until the interpreter ends,
    because threads and exit handlers of the script may still look for it."""
    path = Path(script).resolve()
    sys.argv[:] = [script, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(path.parent)
    try:
        with io.open_code(str(path)) as file:
            code = compile(file.read(), str(path), "exec")
    except OSError as missing:
        why = f"[Errno {missing.errno}] {missing.strerror}"
        print(f"{sys.executable}: can't open file {str(path)!r}: {why}", file=sys.stderr)
        return 2
    except (SyntaxError, ValueError) as wrong:
        _show(wrong, None)
        return FAILED
    return _execute(code, _main_module(path))


def _main_module(path: Path) -> types.ModuleType:
    module = types.ModuleType("__main__")
    loader = SourceFileLoader("__main__", str(path))
    module.__dict__.update(__file__=str(path), __builtins__=__builtins__, __loader__=loader, __cached__=None)
    sys.modules["__main__"] = module
    return module


def _execute(code: types.CodeType, module: types.ModuleType) -> int:
    try:
        exec(code, module.__dict__)  # noqa: S102 the user's own script, on the user's behalf
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as wrong:
        # Without the frame of this function: the script was the first to be called.
        _show(wrong, wrong.__traceback__.tb_next if wrong.__traceback__ else None)
        return FAILED
    return 0


def _show(wrong: BaseException, trace: TracebackType | None) -> None:
    sys.excepthook(type(wrong), wrong.with_traceback(trace), trace)
