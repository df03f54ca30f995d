"""Regular expressions over log lines, within a time: some patterns take years on a line of forty letters.

Python cannot interrupt a match, and nothing else runs in the process while it lasts. So patterns of users are matched
by processes of their own, which the kernel ends when their time is over. They are kept for the next question.
"""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.errors import BadRequest

SECONDS = 2.0  # of CPU for one batch of lines; an honest pattern takes hundredths
KEPT = 3  # processes that wait for the next question
_PROGRAM = Path(__file__).with_name("sift_lines.py")
_QUESTION = struct.Struct(">dII")
_LENGTH = struct.Struct(">I")

Finder = Callable[[Sequence[str]], Sequence[int]]  # numbers of the lines that match, in order

_idle: list[subprocess.Popen[bytes]] = []
_lock = threading.Lock()


class SlowPattern(BadRequest):
    """A pattern that took longer than it may."""

    def __init__(self, pattern: str) -> None:
        super().__init__(
            f"grep: {pattern[:100]!r} took over {SECONDS:g} s for one piece of the log; avoid repeats within repeats "
            "and several '.*' in a row"
        )


def find(pattern: str, lines: Sequence[str]) -> Sequence[int]:
    """The numbers of the lines that `pattern`, which must be a regular expression, matches. SlowPattern.

    Any number of threads may ask at once; each question has a process to itself. No line has a line break.
    """
    if not lines:
        return ()
    process = _borrow()
    try:
        found = _ask(process, pattern.encode("utf-8", "surrogatepass"), "\n".join(lines))
    except BaseException:
        process.kill()
        _end(process)
        raise
    if found is None:
        status = _end(process)
        if status == -signal.SIGPROF:
            raise SlowPattern(pattern)
        raise OSError(f"the process that matches lines ended with status {status}")
    _give_back(process)
    return found


def _borrow() -> subprocess.Popen[bytes]:
    with _lock:
        while _idle:
            process = _idle.pop()
            if process.poll() is None:
                return process
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={},
    )


def _give_back(process: subprocess.Popen[bytes]) -> None:
    with _lock:
        if len(_idle) < KEPT:
            _idle.append(process)
            return
    _end(process)


def _ask(process: subprocess.Popen[bytes], pattern: bytes, lines: str) -> Sequence[int] | None:
    """None when it died instead of answering."""
    assert process.stdin is not None and process.stdout is not None
    text = lines.encode("utf-8", "surrogatepass")
    try:
        process.stdin.write(_QUESTION.pack(SECONDS, len(pattern), len(text)) + pattern + text)
        process.stdin.flush()
    except BrokenPipeError:
        return None
    head = process.stdout.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    found = array("I")
    found.frombytes(process.stdout.read(*_LENGTH.unpack(head)))
    return found


def _end(process: subprocess.Popen[bytes]) -> int:
    """Its status; at the end of its input it leaves by itself."""
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        try:
            pipe.close()
        except BrokenPipeError:
            pass  # it had left before it took the last question
    return process.wait()
