"""Peers of a bench: in one session of their own, heard, and gone in the end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from shoal.bench import plain
from shoal.bench.plain import Crew
from tests.support.live import eventually


def test_a_crew_shares_a_session_that_is_not_ours(tmp_path: Path) -> None:
    script = tmp_path / "who.py"
    script.write_text("import os; print('session', os.getsid(0), os.environ['SIDE'], os.environ['OWN'], flush=True)")
    with Crew(sys.executable, script, {"SIDE": "theirs"}) as crew:
        crew.start(str(script), OWN="0")
        crew.start(str(script), OWN="1")
        said = eventually(lambda: (lines := crew.said().splitlines())[1:] and lines, 60, "the word of both")
    told = sorted(line.split()[1:] for line in said)
    assert [line[1:] for line in told] == [["theirs", "0"], ["theirs", "1"]]
    assert len({line[0] for line in told}) == 1 and told[0][0] != str(os.getsid(0))


def test_what_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "END", 0.5)
    script = tmp_path / "stay.py"
    script.write_text("import os, signal; print(os.getpid(), flush=True); signal.pause()")
    with Crew(sys.executable, script, {}) as crew:
        crew.start(str(script))
        pid = int(eventually(lambda: crew.said().strip(), 60, "its word"))
    assert not Path(f"/proc/{pid}").exists() or "zombie" in Path(f"/proc/{pid}/status").read_text()
