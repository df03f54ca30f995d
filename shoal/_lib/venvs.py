"""Virtual environments built once and shared: a folder of them, each named by a hash of all that went into it.

`KEY/` is the environment, `KEY.json` the facts of it, written last: a folder without them is rubbish from a build that
was killed. `KEY.lock` orders everybody: users share it for as long as they live, a builder or a remover has it alone.
The time of the facts' file is that of the last use; what was not used longest goes first when room runs out.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import signal
import time
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Sequence, Tuple

from shoal._lib import pipwords, process, pythons, requirements
from shoal._lib.pythons import Interpreter
from shoal._lib.quantities import format_size

BUILDER = "1"  # changes when the same recipe would be built into something else
ROOM = 50 << 30  # bytes that all environments may take together, where nobody says otherwise
_KEY_LENGTH = 20
_LOOK_EVERY = 0.2  # seconds, while somebody else builds
_SAY_EVERY = 15.0  # seconds
_KEPT_LINES = 400  # of pip's output, to make sense of a failure
_HIDDEN = ("PYTHON", "VIRTUAL_ENV", "CONDA", "__PYVENV")  # of the caller's environment, not of the one that is built

Tell = Callable[[str], None]


class BuildFailed(Exception):
    """Nothing was kept. `full`: the disk has no room left, which is not the requirements' fault."""

    def __init__(self, message: str, full: bool = False) -> None:
        super().__init__(message)
        self.full = full


class InUse(Exception):
    """Somebody runs in it."""


@dataclass(frozen=True)
class Recipe:
    """What goes into an environment. `digest` stands for the content of what `file` names."""

    name: str  # for people; no part of the key
    lines: Tuple[str, ...] = ()
    bare: Tuple[str, ...] = ()  # installed without their dependencies
    constraints: Tuple[str, ...] = ()
    file: str = ""  # read by pip itself, in `folder`
    folder: str = ""
    digest: str = ""
    pythons: Tuple[str, ...] = ()  # versions that will do; empty for any
    specifier: str = ""  # a bound on the version, such as >=3.10
    settings: Dict[str, str] = field(default_factory=dict)  # variables for pip

    def versions(self) -> List[str]:
        return pythons.acceptable(self.pythons, self.specifier)

    def key(self, version: str) -> str:
        """The same for everything that would be built into the same environment on this machine."""
        parts = ["builder " + BUILDER, pythons.identity(version), self.digest]
        parts += [f"{word} {line}" for word in ("lines", "bare", "constraints") for line in getattr(self, word)]
        parts += [f"{name}={value}" for name, value in sorted(self.settings.items())]
        return requirements.digest(parts)[:_KEY_LENGTH]


@dataclass(frozen=True)
class Facts:
    """What is known of one built environment."""

    key: str
    name: str
    python: str
    requirements: List[str]
    size: int  # bytes
    built_at: float
    seconds: float  # that the build took
    used_at: float = 0.0
    users: int = 0  # processes that hold it

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)


class Held:
    """An environment in use, until `release` or the end of this process."""

    def __init__(self, folder: Path, handle: int) -> None:
        self.folder = folder
        self.key = folder.name
        self.python = str(folder / "bin" / "python")
        self._handle = handle

    def release(self) -> None:
        os.close(self._handle)


class Venvs:
    """One folder of environments. Safe between threads, processes and machines that share the folder."""

    def __init__(self, folder: Path, room: int = ROOM) -> None:
        self.folder = folder
        self._room = room or ROOM

    def use(self, recipe: Recipe, tell: Tell) -> Held:
        """The environment, built when it is not there; one that another builds is waited for. BuildFailed."""
        held = self.find(recipe)
        while held is None:
            self.build(recipe, tell)
            held = self.find(recipe)
        return held

    def find(self, recipe: Recipe) -> Optional[Held]:
        """The environment if it is ready; at once, in a millisecond."""
        found = (self._hold(key) for key in map(recipe.key, recipe.versions()))
        return next((held for held in found if held is not None), None)

    def build(self, recipe: Recipe, tell: Tell) -> str:
        """Its key, once it is built by us or by another. BuildFailed, with nothing kept, when it cannot be."""
        python = _interpreter(recipe)
        key = recipe.key(python.version)
        with _disk_may_fill(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._alone(key, recipe.name, tell):
                if not self._ready(key):
                    self._build(key, recipe, python, tell)
        self.evict(tell)
        return key

    def entries(self) -> List[Facts]:
        """Every environment that is ready, the one used last first."""
        files = sorted(self.folder.glob("*.json")) if self.folder.is_dir() else []
        found = [facts for facts in map(self._facts, files) if facts is not None]
        return sorted(found, key=lambda facts: -facts.used_at)

    def packages(self, key: str) -> Dict[str, str]:
        """What is installed in it, name to version."""
        infos = self.folder.glob(f"{key}/lib/python*/site-packages/*.dist-info")
        pairs = (info.name[: -len(".dist-info")].rpartition("-") for info in sorted(infos))
        return {name: version for name, _, version in pairs}

    def remove(self, key: str) -> bool:
        """Takes it away; False when there is none. InUse while somebody runs in it."""
        if not self._facts_file(key).exists():
            return False
        handle = self._lock(key, fcntl.LOCK_EX)
        if handle is None:
            raise InUse(key)
        try:
            self._clear(key)
        finally:
            os.close(handle)
        return True

    def evict(self, tell: Tell) -> None:
        """Takes away what was not used longest until the rest fits; what is in use stays, whatever it takes."""
        self._tidy()
        entries = self.entries()
        total = sum(facts.size for facts in entries)
        for facts in reversed(entries):
            if total <= self._room:
                return
            with suppress(InUse):
                if not facts.users and self.remove(facts.key):
                    total -= facts.size
                    tell(f"removed {facts.name} ({format_size(facts.size)}), unused the longest, to make room")

    def _tidy(self) -> None:
        """Takes away what killed builds left."""
        for folder in self.folder.iterdir():
            if folder.is_dir() and not self._facts_file(folder.name).exists():
                handle = self._lock(folder.name, fcntl.LOCK_EX)
                if handle is not None:
                    if not self._facts_file(folder.name).exists():
                        self._clear(folder.name)
                    os.close(handle)

    # Holding and locking.

    def _hold(self, key: str) -> Optional[Held]:
        if not self._ready(key):
            return None
        handle = self._lock(key, fcntl.LOCK_SH)
        if handle is None:
            return None
        if not self._ready(key):  # removed between the two looks
            os.close(handle)
            return None
        with suppress(OSError):  # a cache that may be read but not written: then its age is not kept
            os.utime(self._facts_file(key))
        return Held(self.folder / key, handle)

    def _ready(self, key: str) -> bool:
        """Also that its interpreter still leads somewhere: the one it was made from may have been taken away."""
        return self._facts_file(key).exists() and (self.folder / key / "bin" / "python").exists()

    def _lock(self, key: str, kind: int) -> Optional[int]:
        handle = os.open(self.folder / f"{key}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        return handle

    @contextmanager
    def _alone(self, key: str, name: str, tell: Tell) -> Iterator[None]:
        """Alone with the key; leaves early, with nothing to be done, once another has built it."""
        said = 0.0
        handle = self._lock(key, fcntl.LOCK_EX)
        while handle is None and not self._ready(key):
            if time.monotonic() - said > _SAY_EVERY:
                said = time.monotonic()
                tell(f"{name} is being built by another process on this node; waiting for it")
            time.sleep(_LOOK_EVERY)
            handle = self._lock(key, fcntl.LOCK_EX)
        try:
            yield
        finally:
            if handle is not None:
                os.close(handle)

    def _facts_file(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def _facts(self, file: Path) -> Optional[Facts]:
        try:
            raw = json.loads(file.read_text())
            about = file.stat()
        except (OSError, ValueError):
            return None
        known = {name: value for name, value in raw.items() if name in Facts.__dataclass_fields__}
        return Facts(**{**known, "used_at": about.st_mtime, "users": self._users(raw["key"])})

    def _users(self, key: str) -> int:
        """How many processes hold it; where the kernel does not list them, whether anybody does."""
        lock = self.folder / f"{key}.lock"
        if not lock.exists():
            return 0
        listed = _holders(lock.stat().st_ino)
        if listed:
            return listed
        handle = self._lock(key, fcntl.LOCK_EX)
        if handle is None:
            return 1
        os.close(handle)
        return 0

    def _clear(self, key: str) -> None:
        """The caller is alone with the key."""
        import shutil  # here, because it takes 10 ms, and finding what is there is to take none

        self._facts_file(key).unlink(missing_ok=True)
        shutil.rmtree(self.folder / key, ignore_errors=True)

    # Building.

    def _build(self, key: str, recipe: Recipe, python: Interpreter, tell: Tell) -> None:
        begun = time.monotonic()
        self._clear(key)
        target = self.folder / key
        version = python.version
        tell(f"building {recipe.name} for Python {version}")
        try:
            _Builder(target, recipe, python, tell).run()
            facts = Facts(
                key, recipe.name, version, _asked(recipe), _size(target), time.time(), time.monotonic() - begun
            )
            draft = self.folder / f".{key}.{os.getpid()}"
            draft.write_text(json.dumps(facts.to_dict()))
            draft.replace(self._facts_file(key))
        except BaseException:
            self._clear(key)
            raise
        tell(f"built {recipe.name} in {facts.seconds:.1f} s, {format_size(facts.size)}")


class _Builder:
    """One build: an empty environment, then pip in it."""

    def __init__(self, target: Path, recipe: Recipe, python: Interpreter, tell: Tell) -> None:
        self._target = target
        self._recipe = recipe
        self._python = python
        self._tell = tell
        self._said: Deque[str] = deque(maxlen=_KEPT_LINES)

    def run(self) -> None:
        recipe = self._recipe
        self._make_empty()
        if recipe.file:
            self._pip("-r", recipe.file)
        elif recipe.lines:
            constraints = ["-c", self._write("constraints.txt", recipe.constraints)] if recipe.constraints else []
            self._pip("-r", self._write("requirements.txt", recipe.lines), *constraints)
        if recipe.bare:
            self._pip("--no-deps", *recipe.bare)

    def _make_empty(self) -> None:
        """An environment with pip; unpacking the wheel that Python carries saves the seconds of installing it."""
        words = [self._python.path, "-I", "-m", "venv", str(self._target)]
        self._call("venv", [*words, "--without-pip"] if self._python.pip else words)
        if self._python.pip:
            import zipfile

            with zipfile.ZipFile(self._python.pip) as wheel:
                wheel.extractall(next(self._target.glob("lib/python*/site-packages")))
            script = self._target / "bin" / "pip"
            script.write_text(f"#!/bin/sh\nexec '{self._target}/bin/python' -m pip \"$@\"\n")
            script.chmod(0o755)

    def _pip(self, *words: str) -> None:
        # Isolated: the folder it stands in is the job's, which may well hold an email.py.
        python = str(self._target / "bin" / "python")
        pip = [python, "-I", "-u", "-m", "pip", "install", "--no-input", "--progress-bar", "off"]
        self._call("pip", [*pip, "--disable-pip-version-check", *words])

    def _call(self, what: str, argv: Sequence[str]) -> None:
        import subprocess  # here, as in _clear

        child = subprocess.Popen(
            argv,
            cwd=self._recipe.folder or self._target.parent,
            env=_variables(self._recipe.settings),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Nobody may go on writing into the folder once the lock is let go.
            preexec_fn=process.die_with_parent,  # noqa: PLW1509
        )
        try:
            assert child.stdout is not None
            for raw in child.stdout:
                line = raw.decode("utf-8", "replace").rstrip()
                if line:
                    self._said.append(line)
                    self._tell(line)
            status = child.wait()
        finally:
            if child.poll() is None:
                process.send_group(child.pid, signal.SIGKILL)
                child.wait()
        if status != 0:
            raise self._failure(what, status)

    def _failure(self, what: str, status: int) -> BuildFailed:
        meaning = pipwords.understand(self._said)
        if what != "pip":
            words = meaning.words if "ensurepip" not in meaning.words else "the venv module of its Python is not whole"
            return BuildFailed(
                f"an empty environment could not be made with {self._python.path}: {words}", meaning.full
            )
        words = meaning.words if status > 0 else f"pip was killed by signal {-status}"
        return BuildFailed(f"{self._blame(meaning.package)}pip says: {words}; {meaning.advice}", meaning.full)

    def _blame(self, package: str) -> str:
        """The line that asked for the package pip stumbled over, when it is one of ours."""
        recipe = self._recipe
        text = (
            (Path(recipe.folder) / recipe.file).read_text("utf-8", "replace")
            if recipe.file
            else "\n".join(_asked(recipe))
        )
        found = requirements.find_line(text, package)
        if found is None:
            return f"{package}: " if package else ""
        number, line = found[0], _redacted(found[1])
        return f"line {number} of {recipe.file}, {line!r}: " if recipe.file else f"{line!r}: "

    def _write(self, name: str, lines: Sequence[str]) -> str:
        path = self._target / f"shoal-{name}"
        path.write_text("".join(f"{line}\n" for line in lines))
        return str(path)


def _interpreter(recipe: Recipe) -> Interpreter:
    wanted = recipe.specifier or ", ".join(recipe.pythons) or "3"
    try:
        return pythons.find(recipe.versions(), wanted)
    except (pythons.NoPython, ValueError) as none:
        raise BuildFailed(str(none)) from none


def _variables(settings: Dict[str, str]) -> Dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)}, **settings}


def _asked(recipe: Recipe) -> List[str]:
    if recipe.file:
        text = (Path(recipe.folder) / recipe.file).read_text("utf-8", "replace")
        return [_redacted(line) for _, line in requirements.plain_lines(text)]
    return [_redacted(line) for line in (*recipe.lines, *recipe.bare)]


def _redacted(line: str) -> str:
    """A line without the password an address in it may carry: everybody sees what is built."""
    return re.sub(r"(://[^/\s@]*?:?)[^/\s:@]+@", r"\1****@", line)


def _size(folder: Path) -> int:
    """Bytes on the disk."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            total += os.lstat(os.path.join(parent, name)).st_blocks * 512  # noqa: PTH118 – a Path each costs more
    return total


def _holders(inode: int) -> int:
    """How many processes hold a lock of the whole file, as the kernel lists them; zero where it lists none."""
    try:
        with open("/proc/locks") as file:
            lines = [line.split() for line in file]
    except OSError:
        return 0
    return sum("FLOCK" in words and words[1] != "->" and words[-3].endswith(f":{inode}") for words in lines)


@contextmanager
def _disk_may_fill(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise BuildFailed(f"{folder} cannot be written: {error}", full) from error
