"""The parent of a server with children that import nothing: who serves, who takes over, when it gives up."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

SOON = 30.0
REPOSITORY = Path(__file__).parents[3]

PARENT = """
import logging, sys
from shoal.train.ps import spare
from shoal.train.wire.host import listen
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
spare.PAUSE = 0.01
command = lambda listener, control: [sys.executable, sys.argv[1], str(listener), str(control)]
sys.exit(spare.Supervisor("server-0", listen("127.0.0.1", 0), command).run())
"""

CHILD = """
import json, os, socket, sys
control = socket.socket(fileno=int(sys.argv[2]))
say = lambda **word: control.sendall(json.dumps(word).encode() + b"\\n")
say(warm=True)
told = control.makefile().readline()
if not told:
    sys.exit(0)
told = json.loads(told)["serve"]
say(serving=True)
{then}
"""


@contextmanager
def parent(folder: Path, then: str) -> Iterator[subprocess.Popen[str]]:
    """A supervisor whose children do `then` once they serve."""
    (folder / "parent.py").write_text(PARENT)
    (folder / "child.py").write_text(CHILD.format(then=textwrap.dedent(then)))
    process = subprocess.Popen(
        [sys.executable, str(folder / "parent.py"), str(folder / "child.py")],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], pattern: str) -> re.Match[str]:
    assert process.stdout
    heard = ""
    for line in process.stdout:
        heard += line
        found = re.search(pattern, line)
        if found:
            return found
    raise AssertionError(f"no {pattern!r} in: {heard}")


def test_a_child_that_ends_well_ends_the_server(tmp_path: Path) -> None:
    with parent(tmp_path, "sys.exit(0)") as process:
        assert process.wait(SOON) == 0


def test_one_that_keeps_dying_is_given_up(tmp_path: Path) -> None:
    with parent(tmp_path, "os._exit(3)") as process:
        out, _ = process.communicate(timeout=SOON)
        assert process.returncode == 1
        assert out.count("ended with code 3") == 4
        assert "5 processes died soon after they began to serve; giving up" in out


def test_the_next_one_is_told_what_the_one_before_knew(tmp_path: Path) -> None:
    then = """
    if told["takeovers"] == 0:
        say(seen=["worker-0", "worker-7"])
        control.recv(1)
    os.write(1, f"TOLD {os.getpid()} {told['takeovers']} {told['seen']}\\n".encode())
    control.recv(1)
    """
    with parent(tmp_path, then) as process:
        serving = int(read_until(process, r"process (\d+) serves at").group(1))
        spare = int(read_until(process, r"spare (\d+) is warm").group(1))
        os.kill(serving, signal.SIGKILL)
        assert read_until(process, "TOLD (.*)").group(1) == f"{spare} 1 ['worker-0', 'worker-7']"
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON) == 0


def test_the_parent_imports_no_torch() -> None:
    code = "import sys, shoal.train.ps.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, timeout=SOON).returncode == 0
