"""Environments over HTTP: for everybody who is signed in, and for nobody else."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.environments import PRESETS
from shoal.home import ENVIRONMENTS, Home, cache_folder
from shoal.server import process
from tests.server.conftest import Site

pytestmark = pytest.mark.real

KEY = "3f9a2c11aa"
FACTS: dict[str, Any] = {
    "key": KEY, "name": "requirements.txt", "python": "3.11", "requirements": ["six"], "size": 42, "built_at": 1.0,
    "seconds": 2.0,
}  # fmt: skip


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Site]:
    """A server whose cache is the test's own."""
    site = Site(Home(tmp_path / "served"))
    yield site
    process.stop(site.home)


@pytest.fixture
def built() -> Path:
    """One that is built, as far as a list can tell."""
    folder = cache_folder() / ENVIRONMENTS
    (folder / KEY / "lib/python3.11/site-packages/six-1.17.0.dist-info").mkdir(parents=True)
    (folder / f"{KEY}.json").write_text(json.dumps(FACTS))
    return folder


def test_who_is_signed_in_sees_presets_and_what_is_built_and_removes_what_nobody_uses(own: Site, built: Path) -> None:
    ann = own.user("ann")
    assert own.client(None).get("/environments").status_code == 401
    listed = ann.get("/environments").json()
    assert [preset["name"] for preset in listed["presets"]] == list(PRESETS)
    assert [(one["key"], one["users"]) for one in listed["built"]] == [(KEY, 0)]
    assert ann.get("/environments/pytorch-2.13").json()["kind"] == "preset"
    assert ann.get(f"/environments/{KEY[:6]}").json()["packages"] == {"six": "1.17.0"}
    unknown = ann.get("/environments/pytorch-2.31")
    assert unknown.status_code == 404 and "did you mean 'pytorch-2.13'" in unknown.json()["detail"]
    with (built / f"{KEY}.lock").open("w") as user:
        fcntl.flock(user, fcntl.LOCK_SH)
        refused = own.root.delete(f"/environments/{KEY}")
        assert refused.status_code == 409 and "is in use by 1 shepherds" in refused.json()["detail"]
    assert ann.delete(f"/environments/{KEY}").json()["name"] == "requirements.txt"
    assert ann.get("/environments").json()["built"] == [] and not (built / KEY).exists()
