from __future__ import annotations

import inspect
from typing import Any

import shoal.store
from shoal.store import Store


def test_what_comes_out_is_frozen_and_slotted() -> None:
    values: list[Any] = [getattr(shoal.store, name) for name in shoal.store.__all__ if name != "Store"]
    for value in values:
        assert value.__dataclass_params__.frozen, value
        assert hasattr(value, "__slots__"), value


def test_every_public_method_says_what_it_does_or_says_it_by_its_name() -> None:
    plain = {"users", "webhook", "due_deliveries", "manifest", "dialect", "revoke_token"}
    for name, method in inspect.getmembers(Store, inspect.isfunction):
        if not name.startswith("_") and name not in plain:
            assert method.__doc__, name


def test_a_store_closes_at_the_end_of_its_block(sqlite_url: str) -> None:
    with Store.open(sqlite_url) as store:
        assert store.dialect == "sqlite"
        assert store.counts()["queued"] == 0
