"""The command line of bubblewrap for one shepherd: what it sees, reads and may write. Pure.

The whole system is there to read, but what lies in hidden folders is gone, except for what is named. Processes have
numbers of their own; the network is the machine's, because ranks and the server talk through it. All ranks that a
shepherd starts share its view, so their shared memory and their numbers for each other hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath as Path

HIDDEN = ("/home", "/root", "/tmp", "/var/tmp", "/run")
# What programs need of /run: name servers, and the daemon that keeps NVIDIA's driver awake.
KEPT = ("/run/systemd/resolve", "/run/resolvconf", "/run/nvidia-persistenced")
DEVICES = ("nvidia*", "dri", "kfd", "infiniband")  # under /dev
FEW = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-pid", "--unshare-ipc")


@dataclass(frozen=True, slots=True)
class View:
    """Absolute paths that exist. What is read or written lies where it lies outside; `tmp` becomes /tmp."""

    hidden: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    tmp: str
    devices: tuple[str, ...] = ()


def command(program: str, view: View, *, root: bool) -> tuple[str, ...]:
    """What goes before the command, which starts in `/`. `root`: the caller is, and inside gives it up."""
    hidden = outermost(view.hidden)
    words = [program, *FEW, "--perms", "1777", "--tmpfs", "/dev/shm", "--new-session"]
    for path in hidden:
        words += ["--bind", view.tmp, path] if path == "/tmp" else ["--tmpfs", path]
    for device in view.devices:
        words += ["--dev-bind", device, device]
    shown = [path for path in _by_depth({*view.reads, *view.writes}) if path in view.writes or is_below(path, hidden)]
    # The folders on the way are made by bubblewrap, for its own user alone unless they are asked for.
    for parent in _by_depth({str(Path(path).parent) for path in shown if is_below(str(Path(path).parent), hidden)}):
        words += ["--dir", parent]
    for path in shown:
        words += ["--bind" if path in view.writes else "--ro-bind", path, path]
    for path in hidden:
        if path != "/tmp":
            words += ["--remount-ro", path]
    if root:  # what the shepherd needs to become someone else, and nothing more
        words += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    return (*words, "--chdir", "/", "--")


def outermost(paths: Iterable[str]) -> list[str]:
    """Those that lie in none of the others, in order."""
    found: list[str] = []
    for path in _by_depth(paths):
        if not is_below(path, found):
            found.append(path)
    return found


def _by_depth(paths: Iterable[str]) -> list[str]:
    return sorted(set(paths), key=lambda path: (len(Path(path).parts), path))


def is_below(path: str, folders: Iterable[str]) -> bool:
    """Whether it is one of the folders, or lies in one."""
    return any(Path(path).is_relative_to(folder) for folder in folders)
