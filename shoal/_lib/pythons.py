"""The interpreters of this machine: which one an environment is made with, and what makes two of them the same.

What was built for one interpreter runs under another of the same implementation, version (3.11) and platform, wherever
it lies; that, not its path, is its identity.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

OLDEST, NEWEST = 8, 20  # minor versions looked for on PATH
# Its version, and the wheel of pip it carries for new environments (where a distribution keeps those apart, there).
_PROBE = """
import ensurepip, glob, os, sys, venv
folders = [os.path.join(os.path.dirname(ensurepip.__file__), "_bundled"), getattr(ensurepip, "_WHEEL_PKG_DIR", None)]
wheels = [each for folder in folders if folder for each in sorted(glob.glob(os.path.join(folder, "pip-*.whl")))]
print("%d.%d %s" % (sys.version_info[0], sys.version_info[1], wheels[-1] if wheels else ""))
"""
_PROBE_LIMIT = 30.0  # seconds
_ASK_VERSION = "import sys; print('%d.%d.%d' % sys.version_info[:3])"  # also for those of long ago
_NAMED = re.compile(r"python(\d+\.\d+)")
_CLAUSE = re.compile(r"\s*(~=|===?|!=|<=|>=|<|>)\s*(\d+(?:\.\d+)*)(\.\*)?\s*")

Version = Tuple[int, ...]


class Interpreter(NamedTuple):
    """One that can make environments. `pip` is the wheel it carries; empty when it hides it."""

    version: str
    path: str
    pip: str


class NoPython(Exception):
    """No interpreter here will do; the message says which would and which there are."""


def own() -> str:
    """The version of the interpreter that runs this, such as 3.11."""
    return "{}.{}".format(*sys.version_info[:2])


def identity(version: str) -> str:
    """What an environment of that version on this machine depends on; the same for every interpreter it fits."""
    platform = getattr(sys.implementation, "_multiarch", "") or f"{os.uname().machine}-{sys.platform}"
    return f"{sys.implementation.name} {version} {platform}"


def acceptable(pythons: Sequence[str] = (), specifier: str = "") -> List[str]:
    """The versions that will do, our own first, then the newest first; empty when the specifier leaves none."""
    every = [own(), *(f"3.{minor}" for minor in range(NEWEST, OLDEST - 1, -1))]
    found = (each for each in dict.fromkeys(every) if not pythons or each in pythons)
    return [each for each in found if not specifier or admits(specifier, each)]


def find(versions: Sequence[str], wanted: str) -> Interpreter:
    """The first interpreter of these versions that can make environments; NoPython otherwise."""
    seen: List[str] = []
    for version in versions:
        for path in _candidates(version):
            found = _probe(path)
            if found is not None and found.version == version:
                return found
    for minor in range(NEWEST, OLDEST - 1, -1):
        if any(True for _ in _candidates(f"3.{minor}")):
            seen.append(f"3.{minor}")
    here = ", ".join(dict.fromkeys([own(), *seen]))
    raise NoPython(
        f"it needs Python {wanted}, and this node has {here}; install that version (with its venv module, on Debian "
        "python3.X-venv) and put it on the PATH of the server, or ask for another environment"
    )


def admits(specifier: str, version: str) -> bool:
    """Whether `>=3.10,<3.13` admits 3.11; ValueError for text that is no specifier. Patch numbers are not looked at,
    but for our own interpreter, whose patch is known."""
    exact = tuple(sys.version_info[:3]) if version == own() else (*_numbers(version), 99)
    return all(_holds(clause, exact) for clause in specifier.split(",") if clause.strip())


def version_of(path: str) -> Optional[str]:
    """The version of an interpreter, by the name it really has, else as it says itself; None when it says nothing."""
    import subprocess  # here, because it takes milliseconds and mostly nobody is asked

    named = _NAMED.fullmatch(os.path.basename(os.path.realpath(path)))  # noqa: PTH119 – a Path costs more
    if named:
        return named[1]
    words = [path, "-E", "-S", "-c", _ASK_VERSION]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_LIMIT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = os.fsdecode(done.stdout).strip()
    return said if re.fullmatch(r"\d+(\.\d+)+", said) else None


def is_older(version: str, than: str) -> bool:
    """Whether 3.9.18 is older than 3.10; as old only as far as both say."""
    return _numbers(version)[: len(_numbers(than))] < _numbers(than)


def _holds(clause: str, version: Version) -> bool:
    found = _CLAUSE.fullmatch(clause)
    if not found:
        raise ValueError(f"{clause.strip()!r} is not a bound on a version; write for example >=3.10")
    sign, bound, star = found[1], _numbers(found[2]), found[3]
    cut = version[: len(bound)]
    if sign in ("==", "===", "!="):
        # A bare 3.11 in requires-python means the line of versions to people, and 3.11.0 to nobody.
        same = cut == bound if star or len(bound) < 3 else version == bound
        return same is (sign != "!=")
    if sign == "~=":
        return version >= bound and version[: len(bound) - 1] == bound[:-1]
    if sign in ("<", ">="):
        return (version < bound) is (sign == "<")
    return (cut > bound) is (sign == ">")


def _numbers(text: str) -> Version:
    return tuple(map(int, text.split(".")))


def _candidates(version: str) -> Iterator[str]:
    if version == own():
        # The one behind a virtual environment: what is made from it must outlive ours.
        yield getattr(sys, "_base_executable", None) or sys.executable
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, f"python{version}")  # noqa: PTH118 – a Path each costs more
        if os.access(path, os.X_OK):
            yield path


def _probe(path: str) -> Optional[Interpreter]:
    """What really answers there and can make environments; None for a shim that leads nowhere."""
    import subprocess  # here, because it takes milliseconds and mostly nobody is asked

    try:
        done = subprocess.run(
            [path, "-I", "-c", _PROBE], stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_LIMIT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    version, _, pip = os.fsdecode(done.stdout).strip().partition(" ")
    return Interpreter(version, path, pip)
