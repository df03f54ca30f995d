"""What is on the path by Horovod's name: ours, or the real one where there is one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "shoal" / "adapters" / "horovod_path"

pytestmark = pytest.mark.real


def said(script: str, *paths: Path) -> str:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, paths))}
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def real(tmp_path: Path) -> Path:
    """An installed package of that name."""
    for name in ("horovod", "byteps"):
        (tmp_path / name / "torch").mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text("who = 'real'\n")
        (tmp_path / name / "torch" / "__init__.py").write_text("who = 'real torch'\n")
    return tmp_path


def test_ours_is_found_where_there_is_no_other() -> None:
    script = "import horovod.torch as hvd; hvd.init(); print(hvd.__name__, hvd.size(), hvd.elastic.run.__module__)"
    assert said(script, PACKAGES, ROOT) == "horovod.torch 1 shoal.adapters.hvd.elastic"


def test_the_modules_that_scripts_reach_into_are_there() -> None:
    names = (
        *("horovod.torch.elastic", "horovod.torch.elastic.sampler", "horovod.torch.elastic.state"),
        *("horovod.torch.mpi_ops", "horovod.torch.compression", "horovod.torch.functions", "horovod.torch.optimizer"),
        *("horovod.torch.sync_batch_norm", "horovod.common.exceptions", "horovod.common.elastic"),
        *("horovod.common.process_sets", "byteps.torch", "byteps.torch.ops", "byteps.torch.parallel"),
        "byteps.torch.cross_barrier",
    )
    script = f"import importlib; [importlib.import_module(name) for name in {names!r}]; print('all')"
    assert said(script, PACKAGES, ROOT) == "all"


@pytest.mark.parametrize("name", ["horovod", "byteps"])
def test_the_real_one_takes_the_place_with_all_its_modules(real: Path, name: str) -> None:
    script = f"import {name}.torch, {name}; print({name}.who, {name}.torch.who, {name}.__file__)"
    assert said(script, PACKAGES, ROOT, real) == f"real real torch {real / name / '__init__.py'}"


def test_a_mere_folder_of_that_name_is_no_horovod(tmp_path: Path) -> None:
    (tmp_path / "horovod").mkdir()
    assert said("import horovod; print(horovod.__version__)", PACKAGES, ROOT, tmp_path) == "0.28.1"


def test_children_that_are_spawned_find_the_same(real: Path, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "import multiprocessing as mp\n"
        "def who(queue):\n    import horovod\n    queue.put(horovod.who)\n"
        "if __name__ == '__main__':\n"
        "    context = mp.get_context('spawn')\n    queue = context.SimpleQueue()\n"
        "    child = context.Process(target=who, args=(queue,))\n    child.start(); print(queue.get()); child.join()\n"
    )
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(map(str, (PACKAGES, ROOT, real)))}
    argv = [sys.executable, "main.py"]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "real", done.stderr
