"""A script that we run cannot tell that it was not the interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = "import sys; from shoal.adapters import script; sys.exit(script.run(sys.argv[1], sys.argv[2:]))"

LOOK = """
import json, multiprocessing, pickle, sys
import beside

class Own:
    pass

def double(x):
    return 2 * x

if __name__ == "__main__":
    own = pickle.loads(pickle.dumps(Own()))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        doubled = pool.map(double, [21])
    print(json.dumps({
        "argv": sys.argv, "file": __file__, "first": sys.path[0], "spec": __spec__, "doc": __doc__,
        "own": type(own) is Own, "doubled": doubled, "main": sys.modules["__main__"].__dict__ is globals(),
        "beside": beside.NAME, "package": __package__,
    }))
"""


def ran(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(root)}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "beside.py").write_text("NAME = 'found'\n")
    (tmp_path / "src" / "look.py").write_text(LOOK)
    (tmp_path / "src" / "bad.py").write_text("def fall():\n    raise ValueError('so')\n\nfall()\n")
    (tmp_path / "src" / "leave.py").write_text("import sys\nsys.exit(7)\n")
    return tmp_path


@pytest.mark.real
def test_a_script_sees_what_it_sees_under_python_itself(folder: Path) -> None:
    ours = ran(folder, "-c", RUN, "src/look.py", "--lr", "0.1")
    plain = ran(folder, "src/look.py", "--lr", "0.1")
    assert ours.returncode == 0, ours.stderr
    assert json.loads(ours.stdout) == json.loads(plain.stdout)
    assert json.loads(ours.stdout)["doubled"] == [42]


@pytest.mark.real
@pytest.mark.parametrize("script", ["src/bad.py", "src/leave.py", "src/missing.py"])
def test_a_script_that_ends_badly_says_and_leaves_what_python_would(folder: Path, script: str) -> None:
    ours, plain = ran(folder, "-c", RUN, script), ran(folder, script)
    assert ours.returncode == plain.returncode
    assert ours.stderr == plain.stderr
