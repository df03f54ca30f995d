"""The first start: who owns this home, and the token that lets him in."""

from __future__ import annotations

import os
import pwd

from shoal._lib import clock
from shoal.errors import Conflict, NotFound, NotSignedIn
from shoal.home import Home, write_private
from shoal.job.fields import check_name
from shoal.server.auth import mint, verify
from shoal.store import Store

LABEL = "owner"


def owner_name() -> str:
    """The operating-system user, as far as his name can be a name here."""
    try:
        return check_name(pwd.getpwuid(os.getuid()).pw_name)
    except (KeyError, ValueError):
        return "owner"


def ensure_owner(home: Home, store: Store) -> None:
    """An administrator named as the system names us, and a token of his in the home. What is there and works stays."""
    name = owner_name()
    try:
        store.user(name)
    except NotFound:
        _add(store, name)
    if not _token_works(home, store):
        minted = mint()
        store.add_token(minted.id, name, minted.secret_hash, LABEL, None, clock.now())
        write_private(home.token_file, minted.text + "\n")
    home.token_file.chmod(0o600)


def _add(store: Store, name: str) -> None:
    try:
        store.add_user(name, None, True, clock.now())
    except Conflict:
        return  # another server on the same database was faster


def _token_works(home: Home, store: Store) -> bool:
    text = home.read_token()
    if text is None:
        return False
    try:
        verify(store, text, clock.now())
    except NotSignedIn:  # also TokenExpired
        return False
    return True
