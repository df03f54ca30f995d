from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal._lib import clock
from shoal.control.people import User
from shoal.errors import NotSignedIn, TokenExpired
from shoal.server.auth import Guard, Minted, bearer, mint, split_token, verify
from shoal.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path}/home.db") as store:
        store.add_user("ann", None, False, 1.0)
        yield store


def give(store: Store, expires_at: float | None = None) -> Minted:
    minted = mint()
    store.add_token(minted.id, "ann", minted.secret_hash, "", expires_at, 1.0)
    return minted


async def call(act: Any, *arguments: Any) -> Any:
    return act(*arguments)


def test_a_token_has_three_parts_and_the_database_never_sees_the_secret() -> None:
    minted = mint()
    number, secret = split_token(minted.text)
    assert (number, len(number)) == (minted.id, 10)
    assert len(secret) >= 32
    assert secret not in minted.secret_hash
    assert len(minted.secret_hash) == 64


@pytest.mark.parametrize("text", ["", "shl_", "hello", "shl_abc_def", f"shl_{'a' * 10}_{'x' * 31}", "shl_é"])
def test_what_is_no_token_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(NotSignedIn) as caught:
        split_token(text)
    assert not text or text not in str(caught.value)


@pytest.mark.parametrize("header", [None, b"", b"Bearer", b"Bearer ", b"Basic abc", b"Gang abc"])
def test_a_header_without_a_bearer_token_is_refused(header: bytes | None) -> None:
    with pytest.raises(NotSignedIn):
        bearer(header)


def test_a_good_token_names_its_user(store: Store) -> None:
    assert verify(store, give(store).text, clock.now()) == (User("ann", False), None)


def test_a_foreign_token_is_refused(store: Store) -> None:
    with pytest.raises(NotSignedIn):
        verify(store, mint().text, clock.now())


def test_the_right_id_with_a_wrong_secret_is_refused(store: Store) -> None:
    forged = f"shl_{give(store).id}_{mint().text.split('_', 2)[2]}"
    with pytest.raises(NotSignedIn):
        verify(store, forged, clock.now())


def test_an_expired_token_says_that_it_expired(store: Store) -> None:
    minted = give(store, expires_at=100.0)
    verify(store, minted.text, 99.0)
    with pytest.raises(TokenExpired) as caught:
        verify(store, minted.text, 101.0)
    assert caught.value.code == "token_expired"
    assert caught.value.status == 401


def test_a_revoked_token_is_refused_at_once_after_the_guard_forgot(store: Store) -> None:
    guard, minted = Guard(store, call), give(store)
    header = f"Bearer {minted.text}".encode()
    assert asyncio.run(guard.user(header)) == User("ann", False)
    store.revoke_token(minted.id)
    assert asyncio.run(guard.user(header)) == User("ann", False)  # believed for a few seconds
    guard.forget()
    with pytest.raises(NotSignedIn):
        asyncio.run(guard.user(header))


def test_a_believed_token_still_expires_in_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Guard(store, call)
    now = clock.now()
    minted = give(store, expires_at=now + 60)
    header = f"Bearer {minted.text}".encode()
    assert asyncio.run(guard.user(header)).name == "ann"
    monkeypatch.setattr(clock, "now", lambda: now + 61)
    with pytest.raises(TokenExpired):
        asyncio.run(guard.user(header))
