"""What is installed in the interpreter of a rank: asked of that interpreter itself, and remembered until it changes.

The question is put through the same wrapper and with the same search paths as the rank has, so the answer is the one
that `import` would get. It costs an interpreter's start once; after that, a few looks at the times of folders.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from shoal._lib.privacy import plain_address
from shoal.shepherd import probe

KEPT = 64  # answers remembered
_SETTLED = 2.0  # seconds: a folder changed this recently may change again with nothing to show for it
_PYTHON = re.compile(r"(python|pypy)[0-9.]*")
# Programs that run what stands behind them. Of others one cannot know what they would do with our question.
_WRAPPERS = frozenset(
    ("env", "nice", "ionice", "taskset", "numactl", "stdbuf", "setsid", "chrt", "prlimit", "setpriv", "bwrap")
)
_OPTIONS = frozenset(("-s", "-S", "-E", "-I", "-P"))  # of the interpreter, that change where it looks
_VARIABLES = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH")  # and all that begin with PYTHON


def interpreter(argv: Sequence[str], path: str) -> Optional[List[str]]:
    """The words that start the interpreter of this command, wrappers included; None when it is no Python."""
    if not argv:
        return None
    if _PYTHON.fullmatch(Path(argv[0]).name):
        return _with_options(argv, 1)
    if Path(argv[0]).name in _WRAPPERS:
        at = next((i for i, word in enumerate(argv) if i and _PYTHON.fullmatch(Path(word).name)), None)
        return None if at is None else _with_options(argv, at + 1)
    return _from_first_line(argv[0], path)


def question(words: Sequence[str]) -> List[str]:
    """The command that asks that interpreter."""
    source = probe.__spec__.loader.get_source(probe.__name__)  # type: ignore[union-attr]
    return [*words, "-c", source]


def variables(env: Dict[str, str]) -> Dict[str, str]:
    """What of a rank's variables decides where its interpreter looks; nothing else is anybody's business."""
    return {name: value for name, value in env.items() if name in _VARIABLES or name.startswith("PYTHON")}


def answer(output: bytes) -> Optional[Dict[str, Any]]:
    """What the interpreter said, whatever else was printed around it."""
    for line in reversed(output.decode("utf-8", "replace").splitlines()):
        if line.startswith(probe.MARK):
            try:
                told = json.loads(line[len(probe.MARK) :])
            except ValueError:
                return None
            told["sources"] = {name: _source(*source) for name, source in told["sources"].items()}
            return dict(told)
    return None


class Memory:
    """Answers by question, in the cache of this node. Lost or damaged, they are asked again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, words: Sequence[str], env: Dict[str, str]) -> Optional[Dict[str, Any]]:
        """The answer, as long as every folder it came from is as it was."""
        try:
            known = json.loads(self._file(words, env).read_text())
            fresh = all(Path(place).stat().st_mtime_ns == at for place, at in known["marks"].items())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return dict(known) if fresh else None

    def keep(self, words: Sequence[str], env: Dict[str, str], told: Dict[str, Any]) -> None:
        """Unless something it came from changed a moment ago. A full disk costs only the memory."""
        if max(told["marks"].values(), default=0) > (time.time() - _SETTLED) * 1e9:
            return
        file = self._file(words, env)
        draft = file.with_name(f"{file.name}.{os.getpid()}")
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.write_text(json.dumps(told))
            draft.replace(file)
            self._forget_oldest()

    def _file(self, words: Sequence[str], env: Dict[str, str]) -> Path:
        asked = json.dumps([list(words), sorted(env.items())])
        return self._folder / f"{hashlib.sha256(asked.encode()).hexdigest()[:32]}.json"

    def _forget_oldest(self) -> None:
        files = sorted(self._folder.iterdir(), key=lambda file: file.stat().st_mtime)
        for file in files[:-KEPT]:
            file.unlink()


def _source(system: str, url: str, commit: str) -> str:
    """As pip takes it, without who signs in: `git+https://host/repo@commit`, `file:///folder`."""
    return (f"{system}+" if system else "") + plain_address(url) + (f"@{commit}" if commit else "")


def _with_options(argv: Sequence[str], end: int) -> List[str]:
    while end < len(argv) and argv[end] in _OPTIONS:
        end += 1
    return list(argv[:end])


def _from_first_line(program: str, path: str) -> Optional[List[str]]:
    """A script that names its interpreter, as installed commands (`torchrun`) do."""
    places = [Path(program)] if "/" in program else [Path(folder, program) for folder in path.split(os.pathsep)]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        return None
    try:
        with open(found, "rb") as file:
            line = file.readline(4096)
    except OSError:
        return None
    words = os.fsdecode(line[2:]).split() if line.startswith(b"#!") else []
    named = [word for word in words if not word.startswith("-")]
    python = bool(named) and _PYTHON.fullmatch(Path(named[-1]).name)
    return _with_options(named, len(named)) if python else None
