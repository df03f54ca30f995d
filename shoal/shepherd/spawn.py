"""Starts one process that cannot outlive its parent: own group, no input, output into a pipe, limits from the start.

The fork must happen in the main thread, because the kernel ties "dies with its parent" to the thread that forked. The
child makes only system calls between fork and exec; what goes wrong there comes back through a pipe.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Dict, List, NoReturn, Sequence

from shoal._lib import process

_NO_PROGRAM = 127


class SpawnFailed(Exception):
    """`stage` is what the child was doing: enter (the cgroup), folder or exec."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage
        self.message = message


class Birth:
    """A process between fork and exec. `confirm` must be called, once."""

    def __init__(self, pid: int, ear: int, program: str, cwd: str) -> None:
        self._pid = pid
        self._ear = ear
        self._program = program
        self._cwd = cwd

    def confirm(self) -> int:
        """The process id, once the program runs. SpawnFailed says why it does not, in words for the user."""
        with open(self._ear, "rb") as file:
            said = file.read()  # nothing, when exec has closed the other end
        if said:
            os.waitpid(self._pid, 0)
            raise _failure(said, self._program, self._cwd)
        return self._pid


def begin(
    argv: Sequence[str], env: Dict[str, str], cwd: str, output: int, doors: Sequence[str], session: bool = False
) -> Birth:
    """Forks. Entering a cgroup takes many milliseconds, so several births may be under way at once."""
    path = _find(argv[0], env.get("PATH", os.defpath), cwd)
    if "\0" in "".join([*argv, *env, *env.values()]):
        raise SpawnFailed("exec", f"{argv[0]} cannot be started: an argument or variable holds a NUL character")
    handles = _open_doors(doors)
    ear, mouth = os.pipe()
    parent = os.getpid()
    try:
        pid = os.fork()
        if pid == 0:
            (os.setsid if session else _lead_group)()
            _become(path, list(argv), env, cwd, output, handles, mouth, parent)
    except BaseException:
        os.close(ear)
        raise
    finally:
        os.close(mouth)
        for handle in handles:
            os.close(handle)
    return Birth(pid, ear, argv[0], cwd)


def spawn(
    argv: Sequence[str],
    env: Dict[str, str],
    cwd: str,
    output: int,
    doors: Sequence[str] = (),
    session: bool = False,
) -> int:
    """`begin` and `confirm` in one."""
    return begin(argv, env, cwd, output, doors, session).confirm()


def _lead_group() -> None:
    """Not a session, unless the launcher wants one: the kernel's autogroups share out the CPU by sessions, and ranks
    that wake each other at every step are slower across them (TensorFlow by a tenth on two cores)."""
    os.setpgid(0, 0)


def _become(
    path: str, argv: List[str], env: Dict[str, str], cwd: str, output: int, doors: List[int], mouth: int, parent: int
) -> NoReturn:
    stage = "exec"
    try:
        process.die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(_NO_PROGRAM)
        stage = "enter"
        for door in doors:
            os.write(door, b"0")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        # Python ignores these two, and what is ignored stays ignored across exec.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        stage = "folder"
        os.chdir(cwd)
        stage = "exec"
        os.execve(path, argv, env)
    except BaseException as error:
        number = error.errno if isinstance(error, OSError) else 0
        os.write(mouth, f"{stage} {number or 0} {error}".encode("utf-8", "replace")[:4000])
    finally:
        os._exit(_NO_PROGRAM)


def _find(program: str, path: str, cwd: str) -> str:
    if "/" in program:
        return program
    for folder in path.split(os.pathsep):
        candidate = str(Path(cwd, folder, program))
        # Not Path.is_file, which raises for a folder this user may not enter: such a one is passed over.
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):  # noqa: PTH113
            return candidate
    raise SpawnFailed("exec", f"there is no program {program!r} on PATH ({path}); give its full path or install it")


def _open_doors(doors: Sequence[str]) -> List[int]:
    handles: List[int] = []
    try:
        for door in doors:
            handles.append(os.open(door, os.O_WRONLY))
    except OSError as error:
        for handle in handles:
            os.close(handle)
        raise SpawnFailed("enter", f"the cgroup cannot be entered: {error}") from error
    return handles


def _failure(said: bytes, program: str, cwd: str) -> SpawnFailed:
    stage, number, text = said.decode("utf-8", "replace").split(" ", 2)
    why = os.strerror(int(number)) if int(number) else text
    if stage == "folder":
        return SpawnFailed(stage, f"the folder {cwd} cannot be entered: {why}")
    if stage == "enter":
        return SpawnFailed(stage, f"the cgroup cannot be entered: {why}")
    return SpawnFailed(stage, f"{program} cannot be started: {why}; check the path and that it is executable")
