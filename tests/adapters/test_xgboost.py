"""What XGBoost is told in a job, without XGBoost."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shoal.adapters import xgboost as adapter

ROOT = Path(__file__).parents[2]
JOB = {"DMLC_TRACKER_URI": "127.0.0.1", "DMLC_TRACKER_PORT": "4321", "DMLC_TASK_ID": "000001"}
TOLD = {"dmlc_tracker_uri": "127.0.0.1", "dmlc_tracker_port": 4321, "dmlc_task_id": "000001"}


def test_without_arguments_the_jobs_tracker_is_taken() -> None:
    assert adapter.arguments({}, JOB) == TOLD
    assert adapter.arguments({"dmlc_retry": 7}, JOB) == {**TOLD, "dmlc_retry": 7}


def test_variables_passed_on_as_texts_become_numbers_where_xgboost_wants_them() -> None:
    given = {"DMLC_TRACKER_URI": "10.0.0.1", "DMLC_TRACKER_PORT": "99", "DMLC_TASK_ID": "3"}
    assert adapter.arguments(given, JOB) == {**given, "DMLC_TRACKER_PORT": 99}


@pytest.mark.parametrize("given", [{}, {"dmlc_communicator": "federated", "federated_rank": 0}])
def test_elsewhere_nothing_is_added(given: dict[str, Any]) -> None:
    assert adapter.arguments(given, JOB if given else {}) == given


def test_alone_the_context_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DMLC_TRACKER_URI", raising=False)
    assert isinstance(adapter.context(), nullcontext)


def test_workers_wait_until_the_tracker_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gate:
        assert adapter.arguments({}, {**JOB, "SHOAL_GATE": str(gate.getsockname()[1])}) == TOLD


def test_a_tracker_that_never_comes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter, "PATIENCE", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as gate:
        port = gate.getsockname()[1]
    with pytest.raises(TimeoutError, match="look at the log of tracker-0"):
        adapter.arguments({}, {**JOB, "SHOAL_GATE": str(port)})


def test_teaching_twice_is_the_same_as_once(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[dict[str, Any]] = []
    module: Any = ModuleType("collective")
    module.init = lambda **args: heard.append(args)
    adapter.teach(module)
    taught = module.init
    adapter.teach(module)
    monkeypatch.delenv("DMLC_TRACKER_URI", raising=False)
    module.init(dmlc_retry="2")
    assert module.init is taught and heard == [{"dmlc_retry": 2}]


def test_the_path_teaches_when_the_script_imports_and_runs_the_other_sitecustomize(tmp_path: Path) -> None:
    package = tmp_path / "xgboost"
    package.mkdir()
    (package / "__init__.py").write_text("from . import collective\n")
    (package / "collective.py").write_text("def init(**args): print(sorted(args))\n")
    (tmp_path / "sitecustomize.py").write_text("print('the other one')\n")
    script = "import sys; print('xgboost' in sys.modules); import xgboost; xgboost.collective.init()"
    path = f"{ROOT}/shoal/adapters/xgboost_path:{ROOT}:{tmp_path}"
    env = {**os.environ, **JOB, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60)
    said = ["the other one", "False", "['dmlc_task_id', 'dmlc_tracker_port', 'dmlc_tracker_uri']"]
    assert done.stdout.splitlines() == said, done.stderr
