"""httpx without its command line: a plain import would bring rich and pygments wherever these are installed."""

from __future__ import annotations

import sys

_COMMAND_LINE = "httpx._main"

# httpx 0.28 tries to import its own command line and goes on without it on ImportError; None here is that ImportError.
_loaded = "httpx" in sys.modules
if not _loaded:
    sys.modules[_COMMAND_LINE] = None  # type: ignore[assignment]

import httpx  # noqa: E402

if not _loaded:
    del sys.modules[_COMMAND_LINE]

__all__ = ["httpx"]
