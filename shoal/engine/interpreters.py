"""Which folders a Python interpreter needs in order to run: its environment, and the installation that was made from.

A user names the interpreter, so only what looks like one counts: a virtual environment, a conda prefix, or the folder
of a real interpreter with its library. Anything else he names gives nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_LINKS = 40  # followed at most, as the kernel does


def prefixes(program: str) -> tuple[Path, ...]:
    """The folders, in the order in which they are found; none for what is no interpreter."""
    found: dict[Path, None] = {}
    for hop in _hops(Path(program)):
        prefix = hop.parent.parent
        base = _base_of(prefix)
        if base is not None:
            found[prefix] = None
            if _is_installation(base):
                found[base] = None
        elif _is_installation(prefix) and not hop.is_symlink():
            found[prefix] = None
    return tuple(found)


def _hops(program: Path) -> Iterator[Path]:
    """The program, and what each link on the way to the real one points to."""
    for _ in range(_LINKS):
        yield program
        if not program.is_symlink():
            return
        program = Path(program.parent, program.readlink())
        program = program.parent.resolve() / program.name


def _base_of(prefix: Path) -> Path | None:
    """The installation a virtual environment was made from; None for what is no virtual environment."""
    try:
        lines = (prefix / "pyvenv.cfg").read_text(errors="replace").splitlines()
    except OSError:
        return None
    homes = [value.strip() for name, _, value in (line.partition("=") for line in lines) if name.strip() == "home"]
    return Path(homes[0]).parent if homes else prefix


def _is_installation(prefix: Path) -> bool:
    return (prefix / "conda-meta").is_dir() or any(prefix.glob("lib/python3*/os.py"))
