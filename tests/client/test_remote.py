from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.client import remote as module
from shoal.client.http import Api
from shoal.errors import BadSpec
from tests.client.fake import Answer, Chunkery, FakeServer

OFFSET = 100


def add(a: int, b: int = 1) -> int:
    return a + b + OFFSET


def unpacked(chunkery: Chunkery, folder: Path) -> Path:
    """The uploaded folder as a rank would find it."""
    for entry in chunkery.manifests[-1]:
        (folder / entry["path"]).write_bytes(chunkery.content(entry["path"]))
    return folder


def ran(folder: Path, rank: str = "0") -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "SHOAL_ROLE": "worker", "SHOAL_RANK": rank}
    return subprocess.run([sys.executable, module.RUNNER], cwd=folder, env=env, capture_output=True, text=True)


@pytest.fixture
def accepting(server: FakeServer, chunkery: Chunkery) -> Chunkery:
    server.on("POST", "/jobs", lambda _: Answer({"id": "abc", "state": "queued"}, 201))
    return chunkery


def test_a_function_travels_with_a_runner_of_its_own(
    server: FakeServer, api: Api, accepting: Chunkery, tmp_path: Path
) -> None:
    job = shoal.remote(workers=2, cpu=0.5, api=api)(add).submit(1, b=2)
    assert job.id == "abc"
    spec = server.asked[-1].json()["spec"]
    assert (spec["workers"], spec["name"], spec["script"]) == (2, "add", module.RUNNER)
    assert spec["resources"] == {"cpu": 0.5}
    folder = unpacked(accepting, tmp_path)
    done = ran(folder)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "result.json").read_text()) == 103


def test_only_rank_0_writes_the_result(api: Api, accepting: Chunkery, tmp_path: Path) -> None:
    shoal.remote(api=api)(add).submit(1)
    folder = unpacked(accepting, tmp_path)
    assert ran(folder, rank="1").returncode == 0
    assert not (folder / "result.json").exists()


def test_closures_and_lambdas_travel(api: Api, accepting: Chunkery, tmp_path: Path) -> None:
    factor = 7
    shoal.remote(api=api)(lambda x: [x * factor, {"ok": True}]).submit(6)
    folder = unpacked(accepting, tmp_path)
    assert ran(folder).returncode == 0
    assert json.loads((folder / "result.json").read_text()) == [42, {"ok": True}]


def test_the_users_own_modules_travel_too(
    api: Api, accepting: Chunkery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, there = tmp_path / "code", tmp_path / "there"
    (code / "mine").mkdir(parents=True)
    there.mkdir()
    (code / "mine" / "__init__.py").touch()
    (code / "mine" / "helper.py").write_text("def twice(x):\n    return 2 * x\n")
    (code / "mine" / "fit.py").write_text("from mine.helper import twice\n\n\ndef fit(x):\n    return twice(x) + 1\n")
    monkeypatch.syspath_prepend(code)
    fit = importlib.import_module("mine.fit").fit
    shoal.remote(api=api)(fit).submit(20)
    for name in [name for name in sys.modules if name.split(".")[0] == "mine"]:
        monkeypatch.delitem(sys.modules, name)
    done = ran(unpacked(accepting, there))
    assert done.returncode == 0, done.stderr
    assert json.loads((there / "result.json").read_text()) == 41


def test_a_value_that_is_not_json_says_to_write_files(api: Api, accepting: Chunkery, tmp_path: Path) -> None:
    shoal.remote(api=api)(lambda: {1, 2}).submit()
    done = ran(unpacked(accepting, tmp_path))
    assert done.returncode == 1
    assert "returned a set that cannot be written as JSON" in done.stderr
    assert "write everything else to files" in done.stderr
    assert not (tmp_path / "result.json").exists()


def test_an_exception_fails_the_rank_with_its_traceback(api: Api, accepting: Chunkery, tmp_path: Path) -> None:
    def broken() -> None:
        raise ValueError("no such digit")

    shoal.remote(api=api)(broken).submit()
    done = ran(unpacked(accepting, tmp_path))
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ValueError: no such digit" in done.stderr


def test_another_python_is_refused_before_unpickling(api: Api, accepting: Chunkery, tmp_path: Path) -> None:
    shoal.remote(api=api)(add).submit(1)
    folder = unpacked(accepting, tmp_path)
    (folder / "call.json").write_text(json.dumps({"function": "add", "python": [3, 8]}))
    done = ran(folder)
    assert done.returncode == 1
    assert "was sent from Python 3.8" in done.stderr


def test_what_cannot_be_sent_is_said_before_anything_is(server: FakeServer, api: Api) -> None:
    with pytest.raises(BadSpec, match=r"cannot be sent.*pass paths and plain values"):
        shoal.remote(api=api)(add).submit(threading.Lock())  # type: ignore[arg-type]
    assert server.asked == []


def test_keys_that_say_what_to_run_are_refused() -> None:
    with pytest.raises(BadSpec, match="folder, script: a remote function brings its own"):
        shoal.remote(script="x.py", folder="y")


def test_a_wrong_key_is_refused_when_submitting(api: Api) -> None:
    with pytest.raises(BadSpec, match="workers"):
        shoal.remote(workers=0, api=api)(add).submit(1)


def test_it_can_be_used_without_arguments_and_run_here() -> None:
    @shoal.remote
    def double(x: int) -> int:
        """Twice."""
        return 2 * x

    assert double.local(4) == 8
    assert (getattr(double, "__name__", ""), double.__doc__) == ("double", "Twice.")


def test_calling_waits_and_returns_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    class Done:
        def result(self) -> Any:
            return 5

    function = shoal.remote(workers=2)(add)
    monkeypatch.setattr(function, "submit", lambda *args, **kwargs: Done())
    assert function(1) == 5


def test_a_coroutine_function_is_run_to_its_end(api: Api, accepting: Chunkery, tmp_path: Path) -> None:
    async def later(x: int) -> int:
        return x + 1

    shoal.remote(api=api)(later).submit(4)
    folder = unpacked(accepting, tmp_path)
    done = ran(folder)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "result.json").read_text()) == 5


def test_a_coroutine_function_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    async def later(x: int) -> int:
        return x

    class Done:
        async def result(self) -> Any:
            return 5

    async def submitted(*_: Any, **__: Any) -> Done:
        return Done()

    function = shoal.remote(workers=2)(later)
    monkeypatch.setattr(function, "asubmit", submitted)
    assert asyncio.run(function(1)) == 5
