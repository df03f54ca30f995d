from __future__ import annotations

import pytest

from shoal.errors import Conflict, NotFound
from shoal.store import Store
from tests.store.conftest import Opener
from tests.store.making import NOW, at_once


def test_a_user_is_added_once(store: Store) -> None:
    ann = store.add_user("ann", "hash", True, NOW)
    with pytest.raises(Conflict, match="'ann'"):
        store.add_user("ann", None, False, NOW)
    bob = store.add_user("bob", None, False, NOW + 1)
    assert store.users() == (ann, bob)
    assert store.user("bob") == bob
    with pytest.raises(NotFound, match="carl"):
        store.user("carl")


def test_a_token_knows_its_user(store: Store) -> None:
    store.add_user("ann", None, True, NOW)
    token = store.add_token("t1", "ann", "hash", "laptop", NOW + 60, NOW)
    assert store.token("t1") == token
    assert (token.user, token.admin, token.label, token.expires_at) == ("ann", True, "laptop", NOW + 60)
    with pytest.raises(Conflict):
        store.add_token("t1", "ann", "other", "", None, NOW)
    with pytest.raises(NotFound, match="'bob'"):
        store.add_token("t2", "bob", "hash", "", None, NOW)


def test_a_revoked_token_is_not_found(store: Store) -> None:
    store.add_user("ann", None, False, NOW)
    store.add_token("t1", "ann", "hash", "", None, NOW)
    store.revoke_token("t1")
    for question in (store.token, store.revoke_token):
        with pytest.raises(NotFound, match="t1"):
            question("t1")


def test_tokens_are_listed_newest_first(store: Store) -> None:
    for name in ("ann", "bob"):
        store.add_user(name, None, False, NOW)
    for number, user in enumerate(["ann", "bob", "ann"]):
        store.add_token(f"t{number}", user, "hash", "", None, NOW + number)
    assert [t.id for t in store.tokens("ann")] == ["t2", "t0"]
    assert [t.id for t in store.tokens(None)] == ["t2", "t1", "t0"]


def test_tokens_and_webhook_die_with_their_user(store: Store) -> None:
    store.add_user("ann", None, False, NOW)
    store.add_token("t1", "ann", "hash", "", None, NOW)
    store.set_webhook("ann", "https://example.org", "s", ["failure"], NOW)
    store.remove_user("ann")
    assert store.tokens() == ()
    assert store.webhook("ann") is None
    with pytest.raises(NotFound):
        store.token("t1")
    with pytest.raises(NotFound):
        store.remove_user("ann")


def test_all_servers_on_a_database_share_one_secret(open_store: Opener) -> None:
    stores = [open_store() for _ in range(4)]
    secrets = at_once(*[store.server_secret for store in stores])
    assert len(set(secrets)) == 1
    assert len(str(secrets[0])) == 64
    assert open_store().server_secret() == secrets[0]
