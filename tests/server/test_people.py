from __future__ import annotations

import pytest

from shoal.server.passwords import MOST_TRIES
from tests.server.conftest import Site

pytestmark = pytest.mark.real


def test_the_owner_is_an_administrator_from_the_first_start(site: Site) -> None:
    me = site.root.get("/whoami").json()
    assert me["admin"] is True
    assert me["name"] in [user["name"] for user in site.root.get("/users").json()["users"]]


def test_a_name_and_a_password_give_a_token(site: Site) -> None:
    site.root.post("/users", json={"name": "pia", "password": "correct horse"})
    answer = site.client(None).post("/tokens", json={"user": "pia", "password": "correct horse", "label": "laptop"})
    assert answer.status_code == 201
    pia = site.client(answer.json()["token"])
    assert pia.get("/whoami").json() == {"name": "pia", "admin": False}
    assert [token["label"] for token in pia.get("/tokens").json()["tokens"]] == ["laptop"]
    assert "secret_hash" not in pia.get("/tokens").text


def test_a_wrong_password_and_an_unknown_user_get_the_same_answer(site: Site) -> None:
    site.root.post("/users", json={"name": "quin", "password": "correct horse"})
    stranger = site.client(None)
    wrong = stranger.post("/tokens", json={"user": "quin", "password": "wrong horse"})
    unknown = stranger.post("/tokens", json={"user": "nobody-here", "password": "wrong horse"})
    assert wrong.status_code == unknown.status_code == 401
    assert wrong.json() == unknown.json()


def test_a_user_without_a_password_cannot_sign_in_with_one(site: Site) -> None:
    site.user("rex")
    assert site.client(None).post("/tokens", json={"user": "rex", "password": "x" * 8}).status_code == 401


def test_too_many_wrong_passwords_are_429_also_for_the_right_one(site: Site) -> None:
    site.root.post("/users", json={"name": "sam", "password": "correct horse"})
    stranger = site.client(None)
    for _ in range(MOST_TRIES):
        assert stranger.post("/tokens", json={"user": "sam", "password": "wrong horse"}).status_code == 401
    answer = stranger.post("/tokens", json={"user": "sam", "password": "correct horse"})
    assert answer.status_code == 429
    assert answer.json()["code"] == "too_many_tries"
    assert int(answer.headers["retry-after"]) > 0


def test_an_expired_token_says_so(site: Site) -> None:
    token = site.root.post("/tokens", json={"expires_in": 0.001}).json()["token"]
    answer = site.client(token).get("/whoami")
    assert answer.status_code == 401
    assert answer.json()["code"] == "token_expired"


def test_a_revoked_token_is_refused_at_once(site: Site) -> None:
    made = site.root.post("/tokens", json={}).json()
    client = site.client(made["token"])
    assert client.get("/whoami").status_code == 200
    assert site.root.delete(f"/tokens/{made['id']}").status_code == 204
    assert client.get("/whoami").status_code == 401
    assert site.root.delete(f"/tokens/{made['id']}").status_code == 404


def test_a_removed_user_is_out_at_once(site: Site) -> None:
    tom = site.user("tom")
    assert tom.get("/whoami").status_code == 200
    assert site.root.delete("/users/tom").status_code == 204
    assert tom.get("/whoami").status_code == 401
    assert site.root.delete("/users/tom").status_code == 404


def test_an_administrator_cannot_remove_himself(site: Site) -> None:
    name = site.root.get("/whoami").json()["name"]
    assert site.root.delete(f"/users/{name}").status_code == 409


@pytest.mark.parametrize("name", ["", "me", "a/b", "x" * 64, "ünal", "-x"])
def test_names_that_cannot_be_are_refused(site: Site, name: str) -> None:
    assert site.root.post("/users", json={"name": name}).status_code == 400


def test_a_name_that_is_taken_is_a_conflict(site: Site) -> None:
    site.user("uma")
    assert site.root.post("/users", json={"name": "uma"}).status_code == 409


def test_a_short_password_is_refused(site: Site) -> None:
    assert site.root.post("/users", json={"name": "vic", "password": "short"}).status_code == 400
