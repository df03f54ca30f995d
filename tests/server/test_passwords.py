from __future__ import annotations

import pytest

from shoal.errors import BadRequest, NotSignedIn, TooManyTries
from shoal.server.passwords import MOST_TRIES, WINDOW, Tries, check_password, hash_password


def test_a_password_is_kept_as_argon2id_and_found_again() -> None:
    kept = hash_password("correct horse")
    assert kept.startswith("$argon2id$")
    check_password("correct horse", kept)
    with pytest.raises(NotSignedIn):
        check_password("wrong horse", kept)


def test_a_user_without_a_password_is_never_let_in_by_one() -> None:
    for attempt in ("", "nobody", "anything at all"):
        with pytest.raises(NotSignedIn):
            check_password(attempt, None)


@pytest.mark.parametrize("password", ["", "seven77", "x" * 1025])
def test_a_password_out_of_bounds_is_refused(password: str) -> None:
    with pytest.raises(BadRequest):
        hash_password(password)


def test_after_ten_wrong_passwords_one_has_to_wait_and_then_may_try_again() -> None:
    now = 1000.0
    tries = Tries(lambda: now)
    for _ in range(MOST_TRIES):
        tries.check("ann", "1.2.3.4")
        tries.failed("ann", "1.2.3.4")
    with pytest.raises(TooManyTries) as caught:
        tries.check("ann", "1.2.3.4")
    assert 0 < caught.value.wait <= WINDOW
    tries.check("ann", "5.6.7.8")
    tries.check("bob", "1.2.3.4")
    now += WINDOW + 1
    tries.check("ann", "1.2.3.4")


def test_a_right_password_forgives_the_wrong_ones() -> None:
    tries = Tries(lambda: 1.0)
    for _ in range(MOST_TRIES):
        tries.failed("ann", "a")
    tries.succeeded("ann", "a")
    tries.check("ann", "a")


def test_what_is_remembered_of_strangers_stays_bounded() -> None:
    tries = Tries(lambda: 1.0)
    for number in range(25_000):
        tries.failed(f"user{number}", "a")
    assert len(tries._failures) <= 10_000
