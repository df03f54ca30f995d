"""A real server process per test module, with an administrator and two users, and plain HTTP clients for each."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from shoal.home import Home, ServerNote
from shoal.server import process

T = TypeVar("T")


def eventually(look: Callable[[], T | None], seconds: float = 30.0) -> T:
    """Asks again until the answer is true."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"did not happen within {seconds} s; last answer: {found!r}"
        time.sleep(0.02)
    return found


class Site:
    """One server with its people."""

    def __init__(self, home: Home, **options: Any) -> None:
        self.home = home
        self.options = options
        self.note = self.start()
        self.root = self.client(home.read_token())
        self.tokens: dict[str, str] = {}

    def start(self) -> ServerNote:
        self.note = process.start(self.home, self.options)
        return self.note

    def client(self, token: str | None) -> httpx.Client:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=f"{self.note.url}/api/v1", headers=headers, timeout=30, trust_env=False)

    def user(self, name: str) -> httpx.Client:
        if name not in self.tokens:
            assert self.root.post("/users", json={"name": name}).status_code == 201
            self.tokens[name] = self.root.post("/tokens", json={"user": name}).json()["token"]
        return self.client(self.tokens[name])

    def submit(self, who: httpx.Client, *command: str, **keys: Any) -> dict[str, Any]:
        answer = who.post("/jobs", json={"spec": {"command": list(command), **keys}})
        assert answer.status_code == 201, answer.text
        job: dict[str, Any] = answer.json()
        return job

    def ended(self, who: httpx.Client, job: str) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            shown: dict[str, Any] = who.get(f"/jobs/{job}").json()
            return shown if shown["ended_at"] else None

        return eventually(look)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def events_of(answer: httpx.Response) -> Iterator[dict[str, str]]:
    """The events of a stream, as they come."""
    event: dict[str, str] = {}
    for line in answer.iter_lines():
        if not line:
            if event:
                yield event
            event = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            event[name] = value


def lines_of(events: list[dict[str, str]]) -> list[str]:
    return [text for e in events if "event" not in e for _, _, text in json.loads(e["data"])["lines"]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    home = Home(tmp_path_factory.mktemp("site"))
    made = Site(home)
    yield made
    process.stop(home)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A home whose server, if the test started one, is stopped afterwards."""
    home = Home(tmp_path / "home")
    yield home
    process.stop(home)
