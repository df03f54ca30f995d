"""What a submission says of where it comes from, as it goes over the wire."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.client.draft import clone_of, draft
from shoal.client.http import Api
from shoal.client.origin import LONGEST_WORD, typed
from tests.client.fake import Chunkery, FakeServer


@pytest.fixture
def repository(project: Path) -> Path:
    (project / "train.py").write_text("x = 1\n")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"],
                  ["remote", "add", "origin", "https://ann:hunter2@example.org/x.git"]):  # fmt: skip
        who = ["-c", "user.name=Ann", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(project), *who, *words], check=True)
    (project / "train.py").write_text("x = 2\n")
    return project


def sent(server: FakeServer) -> Any:
    return next(one.json() for one in server.asked if one.method == "POST" and one.path.endswith("/jobs"))


def send(server: FakeServer, api: Api, folder: Path, **keys: Any) -> dict[str, Any]:
    server.on("POST", "/jobs", {"id": "j", "state": "queued"})
    draft("train.py", folder=folder, base=folder, **keys).send(api)
    origin: dict[str, Any] = sent(server)["origin"]
    return origin


def test_a_submission_carries_commit_diff_host_and_command(
    server: FakeServer, chunkery: Chunkery, api: Api, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/x/bin/shoal", "run", "train.py"])
    origin = send(server, api, repository)
    assert origin["host"] == socket.gethostname() and origin["command"] == ["shoal", "run", "train.py"]
    assert len(origin["git"]["commit"]) == 40 and "+x = 2" in origin["git"]["diff"]
    assert origin["git"]["remote"] == "https://example.org/x.git" and origin["folder"] == str(repository)


def test_no_credential_is_in_the_body_but_where_the_job_needs_it(
    server: FakeServer, chunkery: Chunkery, api: Api, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "ambient-secret-1")
    command = ["shoal", "run", "--env", "HF_TOKEN=given-secret-2", "train.py", "--", "-k", "ambient-secret-1"]
    monkeypatch.setattr(sys, "argv", command)
    origin = send(server, api, repository, env={"HF_TOKEN": "given-secret-2"}, args=["-k", "ambient-secret-1"])
    for secret in ("hunter2", "ambient-secret-1", "given-secret-2"):
        assert secret not in json.dumps(origin)
    assert origin["command"] == ["shoal", "run", "--env", "HF_TOKEN=***", "train.py", "--", "-k", "***"]
    assert origin["hidden"] == {"1": "***"}


def test_a_job_without_a_folder_says_nothing_of_git(server: FakeServer, api: Api) -> None:
    server.on("POST", "/jobs", {"id": "j", "state": "queued"})
    draft({"command": ["true"]}).send(api)
    assert "git" not in sent(server)["origin"] and "folder" not in sent(server)["origin"]


def test_a_clone_names_its_original(server: FakeServer, api: Api) -> None:
    server.on("POST", "/jobs", {"id": "j", "state": "queued"})
    clone_of({"id": "abc123", "spec": {"command": ["true"]}}, {}).post(api)
    assert sent(server)["origin"]["clone_of"] == "abc123"


def test_a_remote_function_comes_from_where_it_was_written(
    server: FakeServer, chunkery: Chunkery, api: Api, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository / "own_module.py").write_text("def work():\n    return 1\n")
    monkeypatch.syspath_prepend(str(repository))
    import own_module  # type: ignore[import-not-found]

    from shoal.client.remote import remote

    server.on("POST", "/jobs", {"id": "j", "state": "queued"})
    remote(api=api)(own_module.work).submit()
    assert len(sent(server)["origin"]["git"]["commit"]) == 40


def test_the_command_line_is_as_a_person_would_repeat_it() -> None:
    assert typed(["/lib/shoal/cli/__main__.py", "run", "x.py"]) == ["shoal", "run", "x.py"]
    assert typed(["/home/me/submit_all.py", "--fast"]) == ["submit_all.py", "--fast"]
    assert typed([""]) == ["python"]
    assert len(typed(["x", "y" * 9999])[1]) == LONGEST_WORD
