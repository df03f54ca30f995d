"""The command line on a real terminal: the live view, its colours, and what Ctrl-C asks."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator

import pytest

from .conftest import Shoal

pytestmark = pytest.mark.real

CTRL_C = b"\x03"
QUESTION = r"\[l\]eave it running, \[s\]top it, or \[f\]ollow on\?"


class Terminal:
    """A process on a pseudo-terminal of 30 lines of 100 columns; everything it ever showed is in `seen`."""

    def __init__(self, shoal: Shoal, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.process = subprocess.Popen(
            shoal.command(arguments),
            cwd=shoal.folder,
            env=shoal.environment({"TERM": "xterm-256color"}),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            preexec_fn=_own_terminal,  # noqa: PLW1509 (nothing else takes a controlling terminal)
        )
        os.close(theirs)
        self.seen = ""

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def expect(self, pattern: str) -> None:
        """Waits until the pattern was shown since the last one; afterwards only what follows counts."""
        deadline = time.monotonic() + 30
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < deadline and self._more(), f"{pattern!r} was not shown: {self.seen[-2000:]!r}"
        self.seen = self.seen[found.end() :]

    def end(self) -> int:
        while self._more():
            pass
        return self.process.wait(30)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._ours)

    def _more(self) -> bool:
        """Reads what there is, for a second at most; False once the terminal is closed."""
        if select.select([self._ours], [], [], 1.0)[0]:
            try:
                self.seen += os.read(self._ours, 65536).decode("utf-8", "replace")
            except OSError:  # how Linux says that nobody holds the other end any more
                return False
        return True


def _own_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


Open = Callable[..., Terminal]


@pytest.fixture
def terminal(served: Shoal) -> Iterator[Open]:
    """Opens `shoal …` on a terminal; whatever is left open is ended."""
    opened: list[Terminal] = []

    def open_one(*arguments: str) -> Terminal:
        opened.append(Terminal(served, *arguments))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def test_a_run_shows_a_line_per_rank_with_its_progress_and_leaves_the_lines(terminal: Open) -> None:
    code = "import time; print('progress 1/2 loss=0.5', flush=True); print('[rank 1]', flush=True); time.sleep(2)"
    screen = terminal("run", "--workers", "2", "--", "python3", "-c", code)
    screen.expect(r"\x1b\[\d+mworker-\d\x1b\[0m \| \[rank 1\]")
    screen.expect(r"worker-1 +\x1b\[\d+mrunning")
    assert screen.end() == 0 and "succeeded" in screen.seen


def test_ctrl_c_asks_and_following_on_or_stopping_is_obeyed(terminal: Open) -> None:
    screen = terminal("run", "--grace", "1s", "--", "sh", "-c", "echo here; sleep 60")
    screen.expect("here")
    screen.type(CTRL_C)
    screen.expect(QUESTION)
    screen.type(b"f\n")
    screen.expect("running")
    screen.type(CTRL_C)
    screen.expect(QUESTION)
    screen.type(b"s\n")
    assert screen.end() == 130 and "stopped" in screen.seen and "user_stop" in screen.seen


def test_a_second_ctrl_c_leaves_the_job_running(terminal: Open, served: Shoal) -> None:
    screen = terminal("run", "--name", "left-by-hand", "--", "sh", "-c", "echo here; sleep 60")
    screen.expect("here")
    screen.type(CTRL_C)
    screen.expect(QUESTION)
    screen.type(CTRL_C)
    assert screen.end() == 130 and "left running" in screen.seen
    assert served("stop", "left-by-hand", "--force").code == 0


def test_lists_are_tables_in_colour(terminal: Open, served: Shoal) -> None:
    assert served("run", "--name", "coloured", "--", "true").code == 0
    screen = terminal("jobs", "--name", "coloured")
    assert screen.end() == 0 and re.search(r"\x1b\[32msucceeded", screen.seen)


def test_a_password_is_asked_for_twice_and_not_shown(terminal: Open, served: Shoal) -> None:
    screen = terminal("user", "add", "mei")
    screen.expect("Password: ")
    screen.type(b"correct horse\n")
    screen.expect("confirmation: ")
    screen.type(b"correct horse\n")
    assert screen.end() == 0 and "mei added" in screen.seen and "horse" not in screen.seen
    assert served("user", "rm", "mei", "--yes").code == 0
