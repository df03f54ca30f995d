"""The record of what ranks run in, from a real shepherd: after the start, never instead of it, and only once."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.contract import Process

from .flock import Flock, python, shell, until

pytestmark = pytest.mark.real
Make = Callable[..., Flock]


def whole(gang: Flock) -> dict[str, Any]:
    """The last word of the node, once it has left."""
    assert gang.server.done, gang.journal()
    return gang.server.records[-1]


def run(gang: Flock, ranks: int = 1) -> dict[str, Any]:
    shepherd = gang.launch()
    gang.ended(ranks)
    assert gang.leave(shepherd) == 0
    return whole(gang)


def test_a_node_tells_its_machine_its_interpreter_and_its_packages(flock: Make) -> None:
    record = run(flock(python("worker-0", "print('hi')")))
    assert record["host"]["host"] == socket.gethostname() and record["host"]["kernel"] == os.uname().release
    assert record["host"]["cpus"] == os.cpu_count() and record["host"]["memory"] > 0
    assert record["interpreter"] == {"path": sys.executable, "version": ".".join(map(str, sys.version_info[:3]))}
    assert record["packages"]["pytest"] == pytest.__version__


def test_the_first_rank_of_each_role_stands_for_it_with_the_names_of_its_variables(flock: Make) -> None:
    ranks = [
        Process("worker-1", ["/bin/sh", "-c", "true"], {}),
        Process("server-0", ["/bin/echo", "ps"], {"ROLE": "x"}),
        Process("worker-0", ["/bin/echo", "first"], {"LR": "0.1"}),
    ]
    record = run(flock(*ranks), 3)
    assert record["commands"] == {
        "worker-0": {"role": "worker", "argv": ["/bin/echo", "first"], "env": ["LR"]},
        "server-0": {"role": "server", "argv": ["/bin/echo", "ps"], "env": ["ROLE"]},
    }
    assert "packages" not in record and "interpreter" not in record


def test_secrets_of_a_rank_do_not_leave_the_node_in_its_record(flock: Make) -> None:
    env = {"HF_TOKEN": "tok-abcdefgh", "SHOAL_SECRET": "s3cr3t-of-peers"}
    argv = ["/bin/echo", "--password", "hunter2", "-k", "tok-abcdefgh", "https://me:pw@host/x"]
    gang = flock(Process("worker-0", argv, env))
    said = json.dumps([run(gang), *gang.server.records])
    for secret in ("tok-abcdefgh", "s3cr3t-of-peers", "hunter2", "me:pw"):
        assert secret not in said
    assert "HF_TOKEN" in said


def test_an_answer_that_is_remembered_asks_nobody(flock: Make, tmp_path: Path) -> None:
    """It lies beside the gangs' folders, for all of them; `count` is written to by each interpreter that is asked."""
    count, site = tmp_path / "count", tmp_path / "site"
    site.mkdir()
    words = f"import sys\nif sys.orig_argv[1:2] == ['-c']: open({str(count)!r}, 'a').write('x')\n"
    (site / "sitecustomize.py").write_text(words)
    (site / "__pycache__").mkdir()
    os.utime(site, (1, 1))
    rank = Process("worker-0", [sys.executable, "-V"], {"PYTHONPATH": str(site)})
    gang = flock(rank)
    first = run(gang)
    assert count.read_text() == "x" and len(gang.server.records) == 2
    gang.folder.rename(tmp_path / "first")
    second = flock(rank)
    assert run(second)["packages"] == first["packages"]
    assert count.read_text() == "x" and len(second.server.records) == 1


def test_a_rank_runs_for_seconds_before_anybody_is_asked(flock: Make, tmp_path: Path) -> None:
    gang = flock(python("worker-0", "import time; time.sleep(600)"))
    shepherd = gang.launch()
    until(lambda: gang.server.records, what="the first word")
    assert "packages" not in gang.server.records[0] and gang.server.records[0]["host"]
    until(lambda: len(gang.server.records) == 2, what="the second word")
    assert gang.server.records[1]["packages"]
    assert not gang.server.kinds("ended")
    gang.server.direct("stop", grace=0)
    assert gang.leave(shepherd) == 0 and gang.alive() == []


def test_an_interpreter_that_does_not_answer_is_ended_and_noted(flock: Make, tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text("import sys, time\n'-c' in sys.orig_argv and time.sleep(600)\n")
    gang = flock(Process("worker-0", [sys.executable, "-V"], {"PYTHONPATH": str(tmp_path / "site")}))
    record = run(gang)
    assert "did not say" in record["note"] and "packages" not in record
    assert gang.alive() == []


def test_a_server_that_does_not_want_records_is_left_in_peace(flock: Make) -> None:
    gang = flock(shell("worker-0", "true"))
    gang.server.refuse_records = True
    shepherd = gang.launch()
    gang.ended()
    assert gang.leave(shepherd) == 0
    assert gang.server.requests.count("record") == 1 and "does not want the record" in gang.journal()


def test_a_rank_that_cannot_start_still_leaves_a_record_of_its_command(flock: Make) -> None:
    gang = flock(Process("worker-0", ["/no/such/program"], {}))
    shepherd = gang.launch()
    until(lambda: gang.server.kinds("failed_start"))
    assert gang.leave(shepherd) == 0
    assert whole(gang)["commands"]["worker-0"]["argv"] == ["/no/such/program"]
