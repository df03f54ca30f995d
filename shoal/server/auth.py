"""Who asks: tokens, and the guard who turns an Authorization header into a user.

A token is `shl_<id>_<secret>`. The database keeps the hash of the secret, so a stolen copy of it signs nobody in; the
secret has 256 random bits, so a plain SHA-256 is enough.
"""

from __future__ import annotations

import hmac
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from shoal._lib import clock
from shoal._lib.ids import short_id
from shoal.control.people import User
from shoal.errors import NotFound, NotSignedIn, TokenExpired
from shoal.store import Store

ID_LENGTH = 10
TRUST_SECONDS = 5.0  # how long a verified token is believed without asking the database
MOST_TRUSTED = 10_000
_TOKEN = re.compile(rf"shl_([0-9a-z]{{{ID_LENGTH}}})_([A-Za-z0-9_-]{{32,128}})")
_SIGN_IN = "sign in with 'shoal token new', or give a valid token"

Call = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Minted:
    """A new token. `text` is shown once and never stored."""

    id: str
    text: str
    secret_hash: str


def mint() -> Minted:
    number, secret = short_id(ID_LENGTH), secrets.token_urlsafe(32)
    return Minted(number, f"shl_{number}_{secret}", hash_secret(secret))


def hash_secret(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


def split_token(text: str) -> tuple[str, str]:
    """(id, secret) of a token; NotSignedIn for anything else, which is never repeated in the message."""
    match = _TOKEN.fullmatch(text)
    if match is None:
        raise NotSignedIn(f"this is not a token of Shoal; {_SIGN_IN}")
    return match.group(1), match.group(2)


def bearer(header: bytes | None) -> str:
    """The token of an Authorization header."""
    scheme, _, text = (header or b"").decode("latin-1").partition(" ")
    if scheme.lower() != "bearer" or not text.strip():
        raise NotSignedIn(f"no token came with the request; {_SIGN_IN}")
    return text.strip()


def verify(store: Store, text: str, now: float) -> tuple[User, float | None]:
    """The user behind a token and when it expires; NotSignedIn or TokenExpired."""
    number, secret = split_token(text)
    try:
        known = store.token(number)
    except NotFound:
        raise NotSignedIn(f"this server does not know the token, or it was revoked; {_SIGN_IN}") from None
    if not hmac.compare_digest(known.secret_hash, hash_secret(secret)):
        raise NotSignedIn(f"this server does not know the token, or it was revoked; {_SIGN_IN}")
    _check_expiry(known.expires_at, now)
    return User(known.user, known.admin), known.expires_at


def _check_expiry(expires_at: float | None, now: float) -> None:
    if expires_at is not None and now >= expires_at:
        raise TokenExpired(f"the token expired {int(now - expires_at)} s ago; {_SIGN_IN}")


@dataclass(frozen=True, slots=True)
class _Trusted:
    user: User
    expires_at: float | None
    until: float  # monotonic


class Guard:
    """Verifies tokens; a verified one is believed for a few seconds, so that not every request costs a query."""

    def __init__(self, store: Store, call: Call) -> None:
        self._store = store
        self._call = call
        self._trusted: dict[bytes, _Trusted] = {}

    async def user(self, header: bytes | None) -> User:
        text = bearer(header)
        name = sha256(text.encode()).digest()  # so that no secret stays in memory
        trusted = self._trusted.get(name)
        if trusted is not None and time.monotonic() < trusted.until:
            _check_expiry(trusted.expires_at, clock.now())
            return trusted.user
        user: User
        user, expires_at = await self._call(verify, self._store, text, clock.now())
        self._trust(name, _Trusted(user, expires_at, time.monotonic() + TRUST_SECONDS))
        return user

    def forget(self) -> None:
        """After a token was revoked or a user removed: everyone is verified anew."""
        self._trusted.clear()

    def _trust(self, name: bytes, trusted: _Trusted) -> None:
        if len(self._trusted) >= MOST_TRUSTED:
            self._trusted.clear()
        self._trusted[name] = trusted
