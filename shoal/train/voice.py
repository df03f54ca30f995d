"""How the library speaks: one logger, `shoal.train`, that is heard also where the script has set up no logging."""

from __future__ import annotations

import logging

from shoal.train.seeing import Seeing

log = logging.getLogger("shoal.train")


def clear() -> None:
    """Sends the logger's lines to stderr, unless the script has set up logging of its own. Harmless twice."""
    if log.handlers or logging.getLogger().handlers:
        return
    out = logging.StreamHandler()
    out.setFormatter(logging.Formatter("shoal: %(message)s"))
    log.addHandler(out)
    log.setLevel(logging.INFO)
    log.propagate = False


def straggler(seeing: Seeing, before: str | None) -> str | None:
    """Says who comes last to the exchange, when it is another than before; who it is."""
    found = seeing.straggler()
    if found is None or found[0] == before:
        return before
    name, late = found
    log.info(
        "%s comes last to the exchange, %.3f s after the first in the mean (a step takes %.3f s)",
        name,
        late,
        seeing.step_seconds,
    )
    return name
