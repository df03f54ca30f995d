"""What of a folder goes along: the walk that honours .gitignore and .shoalignore, and what is refused."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shoal.errors import BadSpec
from shoal.home import Home

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILES = (".gitignore", ".shoalignore")  # the later one has the last word
NEVER = frozenset({".git", "__pycache__", ".venv"})


@dataclass(frozen=True, slots=True)
class Found:
    """A file or a symbolic link below the folder. `link` is its target, relative and inside."""

    path: str  # relative, with '/'
    status: os.stat_result
    link: str | None = None


def check_folder(folder: str | Path) -> Path:
    """The folder's real path; BadSpec for those that are never sent as a whole."""
    root = Path(folder).expanduser().resolve()
    if not root.is_dir():
        what = "is a file" if root.exists() else "does not exist"
        raise BadSpec(f"{root} {what}; give the folder that holds the script")
    home = Home.here().root.resolve()
    danger = _danger(root, home)
    if danger:
        raise BadSpec(
            f"{root} is {danger} and is never uploaded; move the script into a folder of its own, name one with"
            " --folder, or use --in-place",
            [{"field": "folder", "value": str(root), "message": f"is {danger}"}],
        )
    return root


def walk(root: Path, ignore: bool = True) -> Iterator[Found]:
    """Every file and link to send, in the order of paths. Folders that are left out are not entered."""
    yield from _walk(root, "", (), ignore)


def left_out(root: Path, path: str) -> bool:
    """Whether the walk would pass over the file at `path`, because it or a folder above it is ignored."""
    rules: Rules = ()
    parts = path.split("/")
    for depth, name in enumerate(parts):
        inside = "".join(f"{part}/" for part in parts[:depth])
        rules = _rules(root / inside, inside, rules)
        if name in NEVER or _ignored(inside + name, depth < len(parts) - 1, rules):
            return True
    return False


Rules = tuple[tuple[str, "GitIgnoreSpec"], ...]


def _danger(root: Path, home: Path) -> str | None:
    if root == Path(root.anchor):
        return "the root of the file system"
    if root == Path.home().resolve():
        return "your home folder"
    if root == home:
        return "SHOAL_HOME"
    return f"a folder that holds SHOAL_HOME ({home})" if home.is_relative_to(root) else None


def _walk(root: Path, inside: str, above: Rules, ignore: bool) -> Iterator[Found]:
    here = root / inside
    try:
        with os.scandir(here) as listing:
            found = sorted(listing, key=lambda item: item.name)
    except OSError as wrong:
        raise unreadable(here, wrong) from None
    rules = _rules(here, inside, above) if ignore else ()
    for item in found:
        path = inside + item.name
        folder = item.is_dir(follow_symlinks=False)
        if ignore and (item.name in NEVER or _ignored(path, folder, rules)):
            continue
        if folder:
            yield from _walk(root, f"{path}/", rules, ignore)
        else:
            yield from _leaf(root, path, item)


def _leaf(root: Path, path: str, item: os.DirEntry[str]) -> Iterator[Found]:
    _check_name(path)
    status = item.stat(follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        yield Found(path, status, _link(root, path))
    elif stat.S_ISREG(status.st_mode):
        yield Found(path, status)
    # Sockets, pipes and devices have no content that could be sent.


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise BadSpec(f"{path!a}: the name is not UTF-8; rename the file, or leave it out with .shoalignore") from None


def _link(root: Path, path: str) -> str:
    """The link's target, made relative; BadSpec when it leads out of the folder."""
    full = root / path
    written = target = str(full.readlink())
    if target.startswith("/"):
        target = os.path.relpath(os.path.realpath(target), full.parent.resolve())
    if leads_out(path, target) or not Path(os.path.realpath(full)).is_relative_to(root):
        raise BadSpec(
            f"{path} is a symbolic link to {written}, outside the folder {root}; copy the target in, or leave"
            " the link out with .shoalignore",
            [{"field": "folder", "value": path, "message": "is a symbolic link that leaves the folder"}],
        )
    return target


def leads_out(path: str, target: str) -> bool:
    """Whether a link at `path` to `target` points outside the folder that `path` is relative to, by its words alone."""
    joined = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return target.startswith("/") or joined.split("/")[0] == ".."


def _rules(here: Path, inside: str, above: Rules) -> Rules:
    """The rules that hold in this folder, its own first: the nearest that says something decides."""
    lines: list[str] = []
    for name in IGNORE_FILES:
        try:
            lines.extend((here / name).read_text(encoding="utf-8", errors="replace").splitlines())
        except (FileNotFoundError, IsADirectoryError):
            continue
        except OSError as wrong:
            raise unreadable(here / name, wrong) from None
    if not lines:
        return above
    from pathspec import GitIgnoreSpec

    return ((inside, GitIgnoreSpec.from_lines(lines)), *above)


def _ignored(path: str, folder: bool, rules: Rules) -> bool:
    for inside, spec in rules:
        said = spec.check_file(path[len(inside) :] + ("/" if folder else "")).include
        if said is not None:
            return said
    return False


def unreadable(path: Path, wrong: OSError) -> BadSpec:
    return BadSpec(f"{path} cannot be read ({wrong.strerror}); allow it, or leave it out with .shoalignore")
