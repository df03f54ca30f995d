"""Interpreters of frameworks that ours does not have: made once, kept in the user's cache."""

from __future__ import annotations

import fcntl

import pytest

from shoal.bench.ps_train import tensorflow_python
from shoal.client.digests import cache_folder


@pytest.fixture(scope="session")
def tensorflow() -> str:
    """Of the session, so it is asked for before a test gets a cache of its own."""
    folder = cache_folder() / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "tensorflow.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return str(tensorflow_python())
