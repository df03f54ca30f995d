"""Where the digests of sent folders are remembered: one file per folder under SHOAL_CACHE."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from shoal.storage.digests import Digests

CACHE_VARIABLE = "SHOAL_CACHE"


def cache_folder() -> Path:
    """SHOAL_CACHE, else the user's cache folder."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named).expanduser().absolute() if named else Path.home() / ".cache" / "shoal"


def digests_of(root: Path) -> Digests:
    """What is remembered of that folder."""
    name = sha256(os.fsencode(root)).hexdigest()[:32]
    return Digests(cache_folder() / "digests" / f"{name}.json")
