"""Who asks: a name, and whether he administers the server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class User:
    name: str
    admin: bool = False

    @property
    def scope(self) -> str | None:
        """The owner his look-ups are limited to; None for an administrator, who sees all."""
        return None if self.admin else self.name
