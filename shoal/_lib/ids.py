"""Names for things that must not collide: short, lower case, safe in paths, hosts and URLs."""

from __future__ import annotations

import secrets

# Without i, l, o and u: nothing to mistake when read aloud, and hardly a word to be embarrassed by.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def short_id(length: int = 10) -> str:
    """A random name of `length` characters (5 bits each), never all digits so that it is not taken for a number."""
    while True:
        name = "".join(secrets.choice(_ALPHABET) for _ in range(length))
        if not name.isdigit():
            return name
