"""Where the digests of sent folders are remembered: one file per folder under SHOAL_CACHE."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from shoal.home import cache_folder
from shoal.storage.digests import Digests


def digests_of(root: Path) -> Digests:
    """What is remembered of that folder."""
    name = sha256(os.fsencode(root)).hexdigest()[:32]
    return Digests(cache_folder() / "digests" / f"{name}.json")
