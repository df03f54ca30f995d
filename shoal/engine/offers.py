"""Which ways of keeping jobs apart this machine has, found out by trying them for real; a few milliseconds each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from shoal.engine import bubblewrap
from shoal.engine.isolation import Offers

PROGRAM = "bwrap"
SYSTEM = ("/usr/bin/python3", "/usr/local/bin/python3")  # good enough for a shepherd, from 3.9 on
RECENT = "import sys; sys.exit(sys.version_info < (3, 9))"
HARD_LINKS = Path("/proc/sys/fs/protected_hardlinks")  # 1: nobody links to a file he could not write
WITHIN = 20.0  # seconds; a machine in distress starts nothing faster


def look(home: Path, uid: int) -> Offers:
    """`uid` is one that a job might get; `home` is where shepherds find their things."""
    user, python = _user(home, uid)
    return Offers(user, _bubblewrap(), python)


def _user(home: Path, uid: int) -> tuple[str, str]:
    """What is missing, and the interpreter that serves when the server's own does not."""
    if os.geteuid() != 0:
        return "the server does not run as root, so it cannot start processes as other users; start it as root", ""
    closed = [folder for folder in home.resolve().parents if folder.exists() and not folder.stat().st_mode & 0o001]
    if closed:
        return f"others cannot enter {closed[0]}, above SHOAL_HOME; set SHOAL_HOME to one like /var/lib/shoal", ""
    if HARD_LINKS.read_text().strip() == "0":
        return f"a job could link others' files into its outputs; run: echo 1 > {HARD_LINKS}", ""
    said = _try([sys.executable, "-I", "-S", "-c", RECENT], uid)
    if not said:
        return "", ""
    for python in SYSTEM:
        if not _try([python, "-I", "-S", "-c", RECENT], uid):
            return "", python
    return (
        f"user {uid} cannot start {sys.executable} ({said}); install Shoal and its Python where every user can read "
        "them, and set isolation.uids to numbers that this system allows"
    ), ""


def _bubblewrap() -> str:
    program = shutil.which(PROGRAM)
    if program is None:
        return "bubblewrap is not installed; install the package bubblewrap"
    said = _try([program, *bubblewrap.FEW, "--", "/bin/sh", "-c", ":"])
    if said:
        return f"bubblewrap does not work ({said}); allow unprivileged user namespaces, or start the server as root"
    return ""


def _try(command: list[str], uid: int | None = None) -> str:
    """Empty when it ran, else what went wrong."""
    try:
        switch = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=WITHIN, check=False, cwd="/", env={}, **switch
        )  # type: ignore[call-overload]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip()[-300:] or f"status {done.returncode}")
