"""What ranks run in is found or built on the node, by the shepherd as it travels. The pip is the real one."""

from __future__ import annotations

import io
import sys
import tarfile
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal._lib import process
from shoal._lib.pythons import own
from shoal._lib.venvs import Venvs
from shoal.contract import Environment, Process
from shoal.shepherd.environment import Outfit
from tests.shepherd.flock import Flock, until
from tests.support.wheels import sdist, wheel

pytestmark = pytest.mark.real

MakeFlock = Callable[..., Flock]
SHOW = (
    "import sys, os; print(sys.prefix); print(os.environ['PATH'].split(':')[0]); print(os.environ.get('VIRTUAL_ENV'))"
)
FILE = Environment("file", "requirements.txt", path="requirements.txt").to_dict()


def ranks(*names: str) -> list[Process]:
    return [Process(name, ["@python", "-c", SHOW], {}) for name in names]


def sent(**files: str) -> bytes:
    """A folder with these files, as the server sends it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name.replace("_", "."))
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def wanting(flock: Flock, text: str) -> Flock:
    flock.server.code = sent(requirements_txt=text)
    flock.server.environment = FILE
    return flock


def test_it_is_built_once_and_every_rank_runs_in_it(flock: MakeFlock, tmp_path: Path) -> None:
    wheel(tmp_path / "w", "tiny")
    herd = wanting(flock(*ranks("worker-0", "worker-1")), f"--no-index\n--find-links {tmp_path / 'w'}\ntiny\n")
    shepherd = herd.launch()
    herd.ended(2, 60)
    built = Venvs(Path(herd.task.cache) / "environments").entries()
    prefix = str(Path(herd.task.cache) / "environments" / built[0].key)
    assert herd.server.lines("worker-1") == [prefix, f"{prefix}/bin", prefix]
    lines = herd.server.lines("worker-0")
    assert any(line.startswith("[environment] Successfully installed tiny-1.0") for line in lines)
    assert lines[-3:] == [prefix, f"{prefix}/bin", prefix]
    assert {event["message"] for event in herd.server.kinds("preparing")} == {
        "building environment requirements.txt on node0"
    }
    assert built[0].users == 1  # the shepherd, until it leaves
    assert herd.leave(shepherd) == 0


def test_a_build_that_fails_is_the_environments_fault_and_nothing_is_kept(flock: MakeFlock) -> None:
    herd = wanting(flock(*ranks("worker-0")), "--no-index\nabsent==2\n")
    shepherd = herd.launch()
    until(lambda: herd.server.kinds("failed_start"), 60, herd.journal())
    message = herd.server.kinds("failed_start")[0]["message"]
    assert message.startswith(
        "environment requirements.txt could not be built: line 2 of requirements.txt, 'absent==2'"
    )
    assert Venvs(Path(herd.task.cache) / "environments").entries() == []
    assert herd.leave(shepherd) == 0


@pytest.mark.parametrize("how", ["stop", "leave"])
def test_a_stop_is_heard_while_it_builds_and_leaves_no_process(flock: MakeFlock, tmp_path: Path, how: str) -> None:
    slow = "import time\ndef build_wheel(*a, **k):\n    time.sleep(600)\n"
    herd = wanting(flock(*ranks("worker-0")), f"--no-index\n{sdist(tmp_path / 'src', 'slow', slow)}\n")
    shepherd = herd.launch()
    until(lambda: any("Preparing metadata" in line for line in herd.server.lines("worker-0")), 60, herd.journal())
    assert len(process.descendants(shepherd.pid)) >= 2  # the builder, and pip below it
    if how == "stop":
        herd.server.direct("stop", grace=5)
    assert herd.leave(shepherd) == 0
    until(lambda: not herd.alive(), 10, "the end of what was building")


def test_a_file_that_cannot_be_read_is_told_with_its_line(flock: MakeFlock) -> None:
    herd = wanting(flock(*ranks("worker-0")), "six\n-e .\n")
    shepherd = herd.launch()
    until(lambda: herd.server.kinds("failed_start"), 20, herd.journal())
    assert "line 2 of requirements.txt" in herd.server.kinds("failed_start")[0]["message"]
    assert herd.leave(shepherd) == 0


def test_a_prefix_that_exists_is_used_as_it_is(flock: MakeFlock, tmp_path: Path) -> None:
    venv.create(tmp_path / "mine", with_pip=False)
    herd = flock(Process("worker-0", [str(tmp_path / "mine"), "-c", SHOW], {}))
    herd.server.environment = Environment("path", str(tmp_path / "mine"), path=str(tmp_path / "mine")).to_dict()
    shepherd = herd.launch()
    herd.ended(1)
    mine = str(tmp_path / "mine")
    assert herd.server.lines("worker-0") == [mine, f"{mine}/bin", mine]
    assert herd.leave(shepherd) == 0


def test_an_interpreter_that_is_too_old_ends_the_job_before_the_script_runs_with_both_versions(
    flock: MakeFlock,
) -> None:
    herd = flock(Process("worker-0", [sys.executable, "-c", SHOW], {}))
    herd.server.environment = Environment("path", sys.executable, path=sys.executable, oldest="3.99").to_dict()
    shepherd = herd.launch()
    until(lambda: herd.server.kinds("failed_start"), 20, herd.journal())
    message = herd.server.kinds("failed_start")[0]["message"]
    assert message.startswith(f"environment {sys.executable} is Python {own()}") and "needs Python 3.99" in message
    assert "name a newer one" in message
    assert herd.server.lines("worker-0") == [] and not herd.server.kinds("started")
    assert herd.leave(shepherd) == 0


def test_a_folder_that_is_no_prefix_is_refused(flock: MakeFlock, tmp_path: Path) -> None:
    herd = flock(*ranks("worker-0"))
    herd.server.environment = Environment("path", str(tmp_path), path=str(tmp_path)).to_dict()
    shepherd = herd.launch()
    until(lambda: herd.server.kinds("failed_start"), 20, herd.journal())
    assert "is a folder without bin/python" in herd.server.kinds("failed_start")[0]["message"]
    assert herd.leave(shepherd) == 0


def test_only_the_placeholder_is_replaced_and_the_users_own_path_stays_behind_the_environments() -> None:
    outfit = Outfit("/e/bin/python", "/e/bin", {"VIRTUAL_ENV": "/e"})
    dressed = outfit.put_on(Process("worker-0", ["@python", "@python"], {"PATH": "/mine", "VIRTUAL_ENV": "/other"}))
    assert dressed.argv == ["/e/bin/python", "@python"]
    assert dressed.env == {"PATH": "/e/bin:/mine", "VIRTUAL_ENV": "/other"}
    assert outfit.put_on(Process("worker-0", ["torchrun"], {})).argv == ["torchrun"]


def test_an_interpreter_of_the_machines_own_changes_no_path() -> None:
    assert Outfit(sys.executable).put_on(Process("w", ["@python"], {})).env == {}
