"""Where a job comes from: this machine, this user, what was typed, and the repository of the folder that is sent."""

from __future__ import annotations

import os
import platform
import pwd
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal._lib.privacy import HIDDEN, hide, secret_values
from shoal.client.git import Reading

LONGEST_WORD = 500  # characters of one word of a command line that are kept
MOST_WORDS = 200


class Gathering:
    """Under way since it was made, beside the upload; `result` is what the submission carries along."""

    def __init__(
        self,
        folder: Path | None,
        *,
        arguments: Sequence[str] = (),
        environments: Sequence[Mapping[str, str]] = (),
        clone_of: str | None = None,
    ) -> None:
        self._folder = folder
        self._arguments = arguments
        self._environments = environments
        self._clone_of = clone_of
        self._git = None if folder is None else Reading(folder)

    def result(self) -> dict[str, Any]:
        known = secret_values(*self._environments, os.environ)
        found = {
            "host": socket.gethostname(),
            "user": _user(),
            "command": typed(sys.argv, known),
            "hidden": {at: kept for at, kept in enumerate(hide(self._arguments, known)) if HIDDEN in kept},
            "folder": None if self._folder is None else str(self._folder),
            "python": platform.python_version(),
            # Not imported: the package's face names the client, and types would go round in a circle.
            "shoal": sys.modules["shoal"].__version__,
            "clone_of": self._clone_of,
            "git": None if self._git is None else self._git.result(),
        }
        return {name: value for name, value in found.items() if value not in (None, {})}


def typed(argv: Sequence[str], known: Sequence[str] = ()) -> list[str]:
    """The command line as a person would repeat it, without what looks like a secret."""
    program = Path(argv[0]).name if argv and argv[0] else "python"
    own = program == "__main__.py" and Path(argv[0]).parent.name == "cli"
    words = hide(["shoal" if own else program, *argv[1:]], known)
    return [word[:LONGEST_WORD] for word in words[:MOST_WORDS]]


def _user() -> str:
    """By the number the kernel knows: variables can say anything, and a container may know no name for it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
