"""A fake server, a connection to it, and a project folder, for the tests of the client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.client import http
from shoal.client.http import Api
from tests.client.fake import Chunkery, FakeServer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    yield fake
    fake.close()


@pytest.fixture
def chunkery(server: FakeServer) -> Chunkery:
    return Chunkery(server)


@pytest.fixture
def api(server: FakeServer) -> Iterator[Api]:
    with Api(server.url, "secret-token", timeout=5) as made:
        yield made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives up soon, for tests about a server that does not come back."""
    monkeypatch.setattr(http, "PATIENCE", 0.3)
    monkeypatch.setattr(http, "RETRIES", 1)
