"""What a folder's git repository says of it: commit, branch, where it came from, and how the folder differs from it.

Nothing here may hold up or fail a submission: git runs beside the upload, under a time limit, takes no locks, asks for
nothing, fetches nothing and runs no hook or diff program that the repository names. What could not be learned is said
in `note`.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from functools import partial
from pathlib import Path
from typing import Any

from shoal._lib.privacy import hide_text, plain_address
from shoal.client.folder import left_out
from shoal.errors import ShoalError

SECONDS = 2.0  # since the reading began: what git has not said by then is left out
_HEAD_SECONDS = 0.5  # more, for the commit alone
MOST_DIFF = 768 << 10  # bytes of a diff as JSON carries it: a request has 2 MiB, and the job file takes its part
MOST_NAMES = 500  # of changed or untracked files
_NAME_BYTES = 48 << 10  # of all their names together
_MOST_OUTPUT = 8 << 20  # bytes of any answer
_CUT = "\n… the rest of {size} bytes was cut off …\n"
_OPTIONS = ("--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.quotepath=off", "-c", "color.ui=never")
_DIFF = ("diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--submodule=short", "HEAD", "--")
_QUIET = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",  # also for versions that do not know the line above
    "LC_ALL": "C",
}


class Reading:
    """One look at a folder's repository, under way since it was made; `result` waits for it, a moment at most."""

    def __init__(self, folder: Path, seconds: float = SECONDS) -> None:
        self._folder = folder.resolve()
        self._root = find_root(self._folder)
        self._deadline = time.monotonic() + seconds
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._over = False
        self._notes: list[str] = []
        if self._root is None:
            return
        self._parts: list[Future[dict[str, Any]]] = []
        for body in (self._read_remote, self._read_status, self._read_untracked):
            self._parts.append(_begun(body))

    def result(self) -> dict[str, Any] | None:
        """What is known by now or within the time that is left; None for a folder that is in no repository."""
        if self._root is None:
            return None
        found: dict[str, Any] = {}
        for part in self._parts:
            found.update(self._taken(part, self._deadline))
        if "commit" not in found:  # a repository too large to be looked through still tells its commit at once
            found.update(self._taken(_begun(self._read_head), time.monotonic() + _HEAD_SECONDS))
        self._stop()
        found["folder"] = self._folder.relative_to(self._root).as_posix()
        if self._notes:
            found["note"] = "; ".join(dict.fromkeys(self._notes))
        return found

    def _taken(self, part: Future[dict[str, Any]], deadline: float) -> dict[str, Any]:
        try:
            return part.result(max(0.0, deadline - time.monotonic()))
        except Late:
            self._notes.append("git took too long")
        except (GitSilent, ShoalError) as silent:
            self._notes.append(hide_text(str(silent)))
        except Exception as wrong:  # whatever it is, the job goes out
            self._notes.append(f"git could not be understood: {type(wrong).__name__}")
        return {}

    def _stop(self) -> None:
        with self._lock:
            self._over = True
            for process in self._running:
                process.kill()

    def _read_head(self) -> dict[str, Any]:
        commit, branch = self._lines("rev-parse", "HEAD", "--abbrev-ref", "HEAD")[:2]
        return {"commit": commit, "branch": None if branch == "HEAD" else branch}

    def _read_remote(self) -> dict[str, Any]:
        try:
            words = self._words("config", "-z", "--get-regexp", r"^remote\..*\.url$")
        except GitSilent:  # exit code 1: there is none; what else is wrong the others say
            return {"remote": None}
        known = dict(word.partition("\n")[::2] for word in words)
        address = known.get("remote.origin.url") or next(iter(known.values()), "")
        return {"remote": plain_address(address)[:1000] or None}

    def _read_status(self) -> dict[str, Any]:
        """Commit and branch; tracked files that differ: by name where they are sent, counted where they are not."""
        untracked = "normal" if self._folder == self._root else "no"  # elsewhere is not looked for
        status = ("status", "--porcelain=v2", "--branch", "-z", "--no-renames", f"--untracked-files={untracked}")
        words = self._words(*status)
        paths = [path for path in map(_changed_path, words) if path]
        inside = [path for path in paths if self._is_sent(path)]
        found = {**self._head(words), "dirty": bool(inside), "changed": few(inside)}
        found["elsewhere"] = len(paths) - len(inside)
        if untracked == "normal":
            found["untracked"] = self._sent([word[2:] for word in words if word.startswith("? ")])
        if inside and found["commit"]:
            # A part of its own, which `result` comes to after this one: what is known must not wait for a long diff.
            self._parts.append(_begun(partial(self._read_diff, inside[:MOST_NAMES])))
        return found

    def _head(self, words: Sequence[str]) -> dict[str, Any]:
        told = dict(word.removeprefix("# branch.").partition(" ")[::2] for word in words if word.startswith("# "))
        commit, branch = told.get("oid"), told.get("head")
        if commit == "(initial)":
            self._notes.append("the repository has no commit yet")
        return {
            "commit": None if commit == "(initial)" else commit,
            "branch": None if branch == "(detached)" else branch,
        }

    def _read_diff(self, paths: Sequence[str]) -> dict[str, Any]:
        return {"diff": fitting(self._run(*_DIFF, *paths, at=self._root, whole=False).decode("utf-8", "replace"))}

    def _read_untracked(self) -> dict[str, Any]:
        if self._folder == self._root:
            return {}
        names = self._words("ls-files", "-z", "--others", "--exclude-standard", "--directory", "--no-empty-directory")
        return {"untracked": self._sent(names)}

    def _sent(self, names: Sequence[str]) -> list[str]:
        return few([name for name in names if not left_out(self._folder, name.rstrip("/"))])

    def _is_sent(self, path: str) -> bool:
        """Whether the file, named from the root, goes up with the folder: else its content is nobody's business."""
        full, folder = Path(self._root or "", path), self._folder
        return full.is_relative_to(folder) and not left_out(folder, full.relative_to(folder).as_posix())

    def _lines(self, *words: str) -> list[str]:
        return self._run(*words).decode("utf-8", "replace").splitlines()

    def _words(self, *words: str) -> list[str]:
        return [word for word in self._run(*words).decode("utf-8", "replace").split("\0") if word]

    def _run(self, *words: str, at: Path | None = None, whole: bool = True) -> bytes:
        """What git answers, bounded; GitSilent when it does not. `whole`: a longer answer is none."""
        most = _MOST_OUTPUT if whole else 2 * MOST_DIFF
        process = self._start(["git", *_OPTIONS, "-C", str(at or self._folder), *words])
        with process:
            assert process.stdout is not None and process.stderr is not None
            answer = process.stdout.read(most + 1)
            if len(answer) > most:
                process.kill()
                if whole:
                    raise GitSilent("git said too much")
                return answer
            wrong = process.stderr.read(4096).decode("utf-8", "replace")
        with self._lock:
            self._running.discard(process)
        if process.returncode:
            raise GitSilent(_first_line(wrong) or f"git {words[0]} ended with {process.returncode}")
        return answer

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._over:
                raise GitSilent("git took too long")
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=_environment(os.environ, self._root),
                )
            except OSError as error:
                raise GitSilent(f"git cannot be run: {error.strerror}") from None
            self._running.add(process)
            return process


class GitSilent(Exception):
    """Git did not answer; the text is what to note."""


def find_root(folder: Path) -> Path | None:
    """The nearest folder above, or this one, that holds a `.git`; None outside of any repository."""
    return next((each for each in (folder, *folder.parents) if os.path.lexists(each / ".git")), None)


def few(names: Sequence[str]) -> list[str]:
    """As many of them as are worth sending."""
    kept: list[str] = []
    room = _NAME_BYTES
    for name in names[:MOST_NAMES]:
        room -= len(name.encode("utf-8", "replace"))
        if room < 0:
            break
        kept.append(name)
    return kept


def fitting(diff: str) -> str:
    """The beginning of a diff that is not too long to be sent, whole lines, with a line that says what was cut."""
    size, kept = len(diff.encode("utf-8", "replace")), diff[:MOST_DIFF]
    while len(json.dumps(kept, ensure_ascii=False).encode("utf-8", "replace")) > MOST_DIFF:
        kept = kept[: len(kept) * 3 // 4]
    return diff if kept == diff else kept[: kept.rfind("\n") + 1].rstrip("\n") + _CUT.format(size=size)


def _begun(body: Callable[[], dict[str, Any]]) -> Future[dict[str, Any]]:
    """Runs it in a thread that nobody waits for at the end: a dead network disk must not keep the program."""
    told: Future[dict[str, Any]] = Future()

    def run() -> None:
        try:
            told.set_result(body())
        except BaseException as error:
            told.set_exception(error)

    threading.Thread(target=run, name="shoal-git", daemon=True).start()
    return told


def _environment(machine: Mapping[str, str], root: Path | None) -> dict[str, str]:
    kept = {name: value for name, value in machine.items() if not name.startswith("GIT_")}
    # A broken repository must not be taken for a part of the one around it.
    return {**kept, **_QUIET, "GIT_CEILING_DIRECTORIES": str(root.parent if root else "/")}


def _changed_path(line: str) -> str | None:
    """The path of one entry of `status --porcelain=v2`: ordinary (1) or unmerged (u)."""
    fields = {"1": 8, "u": 10}.get(line[:1])
    return line.split(" ", fields)[-1] if fields else None


def _first_line(text: str) -> str:
    return next((line.removeprefix("fatal: ").strip()[:200] for line in text.splitlines() if line.strip()), "")
