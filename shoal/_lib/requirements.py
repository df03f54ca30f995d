"""What a requirements file, a pyproject or a lock asks for: the lines pip reads, and a digest of all they stand on.

A file may name others (`-r`, `-c`, a wheel or a folder beside it); their content counts, too, so that two equal digests
mean two equal environments. What cannot be shared between jobs, such as an editable installation, is refused.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

_INCLUDE = re.compile(r"(?:-r|--requirement|-c|--constraint)[\s=]*(\S.*)")
_EDITABLE = re.compile(r"(?:-e|--editable)[\s=]*(\S*)")
_COMMENT = re.compile(r"(^|\s)#.*$")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SKIPPED = frozenset({".git", "__pycache__", ".venv", "build", "dist", ".eggs"})  # of a folder that is installed
_PIECE = 1 << 20


class Unreadable(Exception):
    """A file that says nothing pip could be told; the message names the line and what to write instead."""


class Wanted(NamedTuple):
    """`lines` are for a file of our own; empty when pip is to read `file` itself, with its own line numbers."""

    digest: str
    lines: Tuple[str, ...] = ()
    constraints: Tuple[str, ...] = ()
    python: str = ""  # a specifier such as >=3.10,<3.13


def read(folder: Path, name: str, extras: Sequence[str] = ()) -> Wanted:
    """What the file `name` in `folder` asks for; Unreadable, or OSError from the disk."""
    file = folder / name
    if file.name == "pyproject.toml":
        return _pyproject(file, extras)
    if re.fullmatch(r"pylock(\.[^.]+)?\.toml", file.name):
        return _pylock(file)
    if file.name in ("uv.lock", "poetry.lock"):
        return _beside_pyproject(file)
    return Wanted(digest(_walk(folder, file, set())))


def digest(parts: Iterable[str]) -> str:
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(part.encode("utf-8", "surrogateescape") + b"\0")
    return hashed.hexdigest()


def name_of(line: str) -> str:
    """The package a line is about, as indexes spell it; empty for an option or an address."""
    found = _NAME.match(line.strip())
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found and "://" not in line.split(";")[0].split("@")[0] else ""


def plain_lines(text: str) -> Iterator[Tuple[int, str]]:
    """Number and content of each line that says something: continued lines joined, comments and blanks left out."""
    held, first = "", 0
    for number, raw in enumerate(text.splitlines(), 1):
        first = first or number
        held += raw
        if held.endswith("\\"):
            held = held[:-1] + " "
            continue
        line = " ".join(_COMMENT.sub("", held).split())
        if line:
            yield first, line
        held, first = "", 0


# Requirements files.


def _walk(folder: Path, file: Path, seen: Set[Path]) -> Iterator[str]:
    """Every line of the file and of those it names, and the digest of every local file or folder among them."""
    if file.resolve() in seen:
        return
    seen.add(file.resolve())
    for number, line in plain_lines(_text(file)):
        yield line
        where = f"line {number} of {file.name}"
        editable = _EDITABLE.match(line)
        if editable:
            raise Unreadable(
                f"{where}: {line!r} is an editable installation, which points into one job's own copy; leave it out "
                "(the job's folder is on the path of its scripts), or name the package without -e"
            )
        include = _INCLUDE.match(line)
        if include:
            yield from _included(folder, file, include[1].strip("\"'"), where, seen)
        else:
            yield from _local(folder, line, where)


def _included(folder: Path, file: Path, name: str, where: str, seen: Set[Path]) -> Iterator[str]:
    if "://" in name:
        return  # pip fetches it; what it holds then is not ours to know
    path = file.parent / name
    if not path.is_file():
        raise Unreadable(f"{where}: there is no file {name}; send it along in the job's folder")
    yield from _walk(folder, path, seen)


def _local(folder: Path, line: str, where: str) -> Iterator[str]:
    """A wheel, an archive or a folder that the line names: pip would take it from here."""
    first = line.split(";")[0].split(" --")[0].strip()
    target = first.partition("@")[2].strip() if "@ file:" in first else first
    if target.startswith("file:"):
        target = re.sub(r"^file:(//(localhost)?)?", "", target)
    elif not re.match(r"\.{0,2}/|\.$", target) and not target.endswith((".whl", ".tar.gz", ".zip")):
        return
    if "://" in target:
        return
    path = folder / re.sub(r"\[[^\]]*\]$", "", target)
    if not path.exists():
        raise Unreadable(f"{where}: there is no {target} in the job's folder; send it along, or name it by an index")
    yield _content(path)


def _content(path: Path) -> str:
    """A digest of a file, or of all files of a folder with their names."""
    if path.is_file():
        return _hashed(path)
    files = (each for each in sorted(path.rglob("*")) if each.is_file() and not _SKIPPED & set(each.parts))
    return digest(f"{each.relative_to(path)} {_hashed(each)}" for each in files)


def _hashed(path: Path) -> str:
    hashed = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            piece = file.read(_PIECE)
            if not piece:
                return hashed.hexdigest()
            hashed.update(piece)


# TOML: a pyproject, and locks.


def _pyproject(file: Path, extras: Sequence[str]) -> Wanted:
    project = _toml(file).get("project")
    if not isinstance(project, dict):
        raise Unreadable(
            f"{file.name} has no table [project]; list its dependencies there, or write them out with your tool, for "
            "example 'poetry export -o requirements.txt'"
        )
    if "dependencies" in project.get("dynamic", ()):
        raise Unreadable(
            f"{file.name} says that its dependencies are dynamic, so only its own build knows them; write them to a "
            "requirements.txt and name that"
        )
    optional: Dict[str, List[str]] = project.get("optional-dependencies", {})
    for extra in extras:
        if extra not in optional:
            raise Unreadable(f"{file.name} has no extra {extra!r}; it has: {', '.join(optional) or 'none'}")
    lines = (*project.get("dependencies", ()), *(line for extra in extras for line in optional[extra]))
    local = [each for line in lines for each in _local(file.parent, line, file.name)]
    python = str(project.get("requires-python", ""))
    return Wanted(digest(["pyproject", python, *lines, *local]), lines, python=python)


def _beside_pyproject(lock: Path) -> Wanted:
    """A lock that goes with a pyproject: the latter says what, the former which versions."""
    project = lock.with_name("pyproject.toml")
    if not project.is_file():
        raise Unreadable(f"{lock.name} goes with a pyproject.toml, and there is none beside it; send both")
    wanted = _pyproject(project, ())
    pins = tuple(
        f"{package['name']}=={package['version']}"
        for package in _toml(lock).get("package", ())
        if "version" in package and not _from_elsewhere(package.get("source"))
    )
    return wanted._replace(digest=digest([wanted.digest, *pins]), constraints=pins)


def _from_elsewhere(source: Any) -> bool:
    """Whether a locked package comes from a folder, a repository or an address: pip takes no version for those."""
    if not isinstance(source, dict):
        return False
    return source.get("type") in ("git", "url", "file", "directory") or not {"registry", "type"} & set(source)


def _pylock(file: Path) -> Wanted:
    """PEP 751: everything with its version and its hashes; markers say what is for which machine."""
    lock = _toml(file)
    lines = tuple(_locked(file, package) for package in lock.get("packages", ()))
    python = str(lock.get("requires-python", ""))
    return Wanted(digest(["pylock", python, *lines]), lines, python=python)


def _locked(file: Path, package: Dict[str, Any]) -> str:
    if "version" not in package:
        raise Unreadable(f"{file.name}: {package.get('name')!r} has no version, so it comes from no index; name one")
    line = f"{package['name']}=={package['version']}"
    marker = package.get("marker")
    sources = [*package.get("wheels", ()), *filter(None, [package.get("sdist")])]
    hashes = sorted({f"--hash={name}:{value}" for each in sources for name, value in each.get("hashes", {}).items()})
    return " ".join([line, *([f"; {marker}"] if marker else []), *hashes])


def _toml(file: Path) -> Dict[str, Any]:
    try:
        import tomllib
    except ImportError:
        raise Unreadable(
            f"{file.name} needs Python 3.11 or newer on the node to be read; give a requirements.txt"
        ) from None
    try:
        return tomllib.loads(_text(file))
    except tomllib.TOMLDecodeError as wrong:
        raise Unreadable(f"{file.name} is not TOML: {wrong}; correct that line") from None


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig")
    except UnicodeDecodeError as wrong:
        raise Unreadable(f"{file.name} is not text in UTF-8 (byte {wrong.start}); save it as plain text") from None


def find_line(text: str, package: str) -> Optional[Tuple[int, str]]:
    """Where a requirements text names the package."""
    wanted = name_of(package)
    return next(((number, line) for number, line in plain_lines(text) if wanted and name_of(line) == wanted), None)
