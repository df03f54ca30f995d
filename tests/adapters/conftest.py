"""Interpreters of frameworks that ours does not have."""

from __future__ import annotations

import pytest

from tests.support.interpreters import preset


@pytest.fixture(scope="session")
def tensorflow() -> str:
    return preset("tensorflow-2.21")
