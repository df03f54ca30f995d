"""Users, their tokens, and the secret that all servers on one database share."""

from __future__ import annotations

import secrets
from typing import Any

from sqlalchemy import bindparam, delete, select

from shoal.errors import Conflict, NotFound
from shoal.store.database import Database
from shoal.store.part import Part
from shoal.store.records import Token, User
from shoal.store.tables import meta, tokens, users, webhooks
from shoal.store.words import plain

_SECRET = "server_secret"
_READ_META = select(meta.c.value).where(meta.c.name == bindparam("name"))
_USERS = select(users).order_by(users.c.name)
_USER = select(users).where(users.c.name == bindparam("name"))
_TOKENS = select(tokens, users.c.admin).join(users, users.c.name == tokens.c.user)
_TOKEN = _TOKENS.where(tokens.c.id == bindparam("id"))


class People(Part):
    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._server_secret: str | None = None

    def server_secret(self) -> str:
        """Made once per database, the same for all servers on it."""
        if self._server_secret is None:
            with self._database.write(safe=True) as connection:
                self._add(connection, meta, {"name": _SECRET, "value": secrets.token_hex(32)})
                self._server_secret = str(connection.execute(_READ_META, {"name": _SECRET}).scalar_one())
        return self._server_secret

    def add_user(self, name: str, password_hash: str | None, admin: bool, now: float) -> User:
        """Conflict when the name is taken."""
        row = {"name": name, "password_hash": password_hash, "admin": admin, "created_at": now}
        with self._database.write(safe=True) as connection:
            if not self._add(connection, users, row):
                raise Conflict(f"there is already a user {name!r}; choose another name", user=name)
        return User(name, admin, password_hash, now)

    def user(self, name: str) -> User:
        """NotFound without him."""
        with self._database.read() as connection:
            row = connection.execute(_USER, {"name": name}).first()
        if row is None:
            raise NotFound(f"there is no user {name!r}; see 'shoal user ls'", user=name)
        return _user(row)

    def users(self) -> tuple[User, ...]:
        with self._database.read() as connection:
            return tuple(map(_user, connection.execute(_USERS)))

    def remove_user(self, name: str) -> None:
        """His tokens and his webhook go with him; his jobs stay. NotFound."""
        with self._database.write(safe=True) as connection:
            if connection.execute(delete(users).where(users.c.name == name)).rowcount == 0:
                raise NotFound(f"there is no user {name!r}; see 'shoal user ls'", user=name)
            connection.execute(delete(webhooks).where(webhooks.c.owner == name))

    def add_token(
        self, token_id: str, user: str, secret_hash: str, label: str, expires_at: float | None, now: float
    ) -> Token:
        """NotFound for an unknown user, Conflict for an id that is taken."""
        row = {"id": token_id, "user": user, "secret_hash": secret_hash, "label": plain(label),
               "expires_at": expires_at, "created_at": now}  # fmt: skip
        with self._database.write(safe=True) as connection:
            owner = connection.execute(_USER.with_for_update(read=True), {"name": user}).first()
            if owner is None:
                raise NotFound(f"there is no user {user!r}; see 'shoal user ls'", user=user)
            if not self._add(connection, tokens, row):
                raise Conflict(f"there is already a token {token_id!r}; make another", token=token_id)
        return Token(token_id, user, bool(owner.admin), secret_hash, plain(label), now, expires_at)

    def token(self, token_id: str) -> Token:
        """NotFound when it never was or was revoked; whether it has expired is for the caller to say."""
        with self._database.read() as connection:
            row = connection.execute(_TOKEN, {"id": token_id}).first()
        if row is None:
            raise NotFound(f"there is no token {token_id!r}, or it was revoked; make one with 'shoal token new'")
        return _token(row)

    def tokens(self, user: str | None = None) -> tuple[Token, ...]:
        """His, or everybody's; newest first."""
        query = _TOKENS if user is None else _TOKENS.where(tokens.c.user == user)
        with self._database.read() as connection:
            return tuple(map(_token, connection.execute(query.order_by(tokens.c.created_at.desc(), tokens.c.id))))

    def revoke_token(self, token_id: str) -> None:
        with self._database.write(safe=True) as connection:
            if connection.execute(delete(tokens).where(tokens.c.id == token_id)).rowcount == 0:
                raise NotFound(f"there is no token {token_id!r}, or it was revoked already; see 'shoal token ls'")


def _user(row: Any) -> User:
    return User(row.name, row.admin, row.password_hash, row.created_at)


def _token(row: Any) -> Token:
    return Token(row.id, row.user, row.admin, row.secret_hash, row.label, row.created_at, row.expires_at)
