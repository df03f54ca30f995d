"""The command line: one of the doors. Every command acts through the SDK, with the other doors' words and checks."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """The entry point `shoal`."""
    import sys

    from shoal.cli.app import run

    sys.exit(run(sys.argv[1:]))
