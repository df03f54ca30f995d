"""Names to plug-ins: a family is a table of `name → "module:attribute"`, loaded when asked for, open to others."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any, Iterable

from shoal.errors import MissingExtra, UnknownName


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name a person most likely meant, or None when nothing is near."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


class Catalogue:
    """One family of plug-ins. A wrong name answers with the nearest; a missing dependency with the extra to install."""

    def __init__(self, family: str, entries: Mapping[str, str], extras: Mapping[str, str] | None = None) -> None:
        self.family = family
        self._entries = dict(entries)
        self._extras = dict(extras or {})

    def names(self) -> list[str]:
        return sorted({*self._entries, *self._foreign()})

    def load(self, name: str) -> Any:
        """The attribute behind `name`; UnknownName or MissingExtra otherwise."""
        target = self._entries.get(name) or self._foreign().get(name)
        if target is None:
            known = self.names()
            raise UnknownName(self.family, name, known, nearest(name, known))
        module, _, attribute = target.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as missing:
            if missing.name and missing.name.startswith("shoal"):
                raise
            raise MissingExtra(self.family, name, str(missing.name), self._extras.get(name)) from missing

    def _foreign(self) -> dict[str, str]:
        """Entry points of other distributions, group `shoal.<family>`."""
        from importlib.metadata import entry_points

        found = entry_points()
        group = f"shoal.{self.family}"
        points = found.select(group=group) if hasattr(found, "select") else found.get(group, ())
        return {point.name: point.value for point in points}
