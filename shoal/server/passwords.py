"""Passwords: kept as argon2id, checked in the same time for known and unknown users, and tried only so often."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from shoal.errors import BadRequest, NotSignedIn, TooManyTries

if TYPE_CHECKING:
    from argon2 import PasswordHasher

SHORTEST = 8  # characters
LONGEST = 1024
MOST_TRIES = 10
WINDOW = 300.0  # seconds
MOST_NAMES = 10_000  # remembered at once

# The hash of a password nobody has, with the costs of `_hasher`: verified for unknown users so that they take as long.
NOBODY = "$argon2id$v=19$m=65536,t=3,p=4$bkFA6jbjJ8cl44tqdsfpTw$oc+76JiUDBHjvz7vNW4OLDy3B+0hvEtSnC2p7/Y3WgQ"


def hash_password(password: str) -> str:
    if not SHORTEST <= len(password) <= LONGEST:
        raise BadRequest(f"the password has {len(password)} characters; choose {SHORTEST} to {LONGEST}")
    return _hasher().hash(password)


def check_password(password: str, known_hash: str | None) -> None:
    """NotSignedIn unless it matches; a user without a password, or no user at all, takes the same time."""
    from argon2.exceptions import Argon2Error, InvalidHashError

    try:
        _hasher().verify(known_hash or NOBODY, password[:LONGEST])
    except (Argon2Error, InvalidHashError):
        raise wrong_password() from None
    if known_hash is None:
        raise wrong_password()


def wrong_password() -> NotSignedIn:
    return NotSignedIn("the name or the password is wrong; an administrator can help: 'shoal token new --for NAME'")


def _hasher() -> PasswordHasher:
    # Imported when first needed: most servers never see a password.
    from argon2 import PasswordHasher

    return PasswordHasher(time_cost=3, memory_cost=65536, parallelism=4)


class Tries:
    """Wrong passwords per name and address; after ten in five minutes the next one has to wait."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[tuple[str, str], deque[float]] = {}

    def check(self, name: str, address: str) -> None:
        failures = self._recent(name, address)
        if len(failures) >= MOST_TRIES:
            wait = failures[0] + WINDOW - self._clock()
            raise TooManyTries(f"{MOST_TRIES} wrong passwords in {WINDOW / 60:.0f} min; wait {int(wait) + 1} s", wait)

    def failed(self, name: str, address: str) -> None:
        if len(self._failures) >= MOST_NAMES:
            self._forget_old()
        self._failures.setdefault((name, address), deque(maxlen=MOST_TRIES)).append(self._clock())

    def succeeded(self, name: str, address: str) -> None:
        self._failures.pop((name, address), None)

    def _recent(self, name: str, address: str) -> deque[float]:
        failures = self._failures.get((name, address), deque())
        while failures and failures[0] <= self._clock() - WINDOW:
            failures.popleft()
        return failures

    def _forget_old(self) -> None:
        oldest = self._clock() - WINDOW
        kept = {key: failures for key, failures in self._failures.items() if failures and failures[-1] > oldest}
        self._failures = kept if len(kept) < MOST_NAMES else {}
