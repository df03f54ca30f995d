"""One thread: the tests share their cores, and threads that wait for each other there take a hundred times as long."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def always_heard(heard: None) -> None:
    """What is logged reaches caplog."""
