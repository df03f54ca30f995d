"""What a launch needs and cannot have ends the wait for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import ServerAway
from shoal.shepherd.fetch import Fetcher
from shoal.shepherd.gang import Refused
from shoal.shepherd.wire import WireError


class Broken:
    def read(self, count: int = -1) -> bytes:
        raise WireError("the answer broke off 4096 bytes before its end")


class Server:
    """Has lost a chunk, so that it can only break off in the middle, again and again."""

    def open_tar(self, what: str) -> Broken:
        return Broken()

    def close_tar(self, answer: Broken) -> None:
        pass

    def again(self, call: Callable[[], Any]) -> Any:
        while True:
            try:
                return call()
            except ServerAway:
                continue


def test_code_that_always_breaks_off_is_given_up(tmp_path: Path) -> None:
    fetcher = Fetcher(Server(), None, None, None, None)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="code cannot be had: it broke off 20 times"):
        fetcher._fill("code", tmp_path / "work")
    assert (tmp_path / ".work.complete").read_text() == ""
