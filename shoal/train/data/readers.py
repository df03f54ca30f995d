"""Batches by their number, as a clerk hands them out."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Protocol

from shoal.train.data.ledger import Range
from shoal.train.data.order import Cut
from shoal.train.data.passes import Pass, Source
from shoal.train.data.sized import Indexed, Listed

LEFT_OUT = object()  # stands for a batch that cannot be read any more

_log = logging.getLogger("shoal.train")


class Reader(Protocol):
    total: int | None  # batches in all
    found: int | None  # the same, once the end was found by reading

    def read(self, ranges: Iterable[Range]) -> Iterator[Any]:
        """The batches of these ranges, one after another. The ranges are asked for as late as possible."""
        ...


def reader_of(source: Source, one: Pass) -> Reader:
    return Numbered(source, one) if isinstance(source, (Indexed, Listed)) else Forward(source, one)


class Numbered:
    """Of an input with length: any batch can be read at any time."""

    found: int | None = None

    def __init__(self, source: Indexed | Listed, one: Pass) -> None:
        self._source, self._one, self._order = source, one, source.order(one)
        self._cut = Cut(len(self._order), 1, source.batch, source.drop_last, even=False)
        self.total: int | None = self._cut.steps(0)

    def read(self, ranges: Iterable[Range]) -> Iterator[Any]:
        plan = (
            [self._order[place] for place in self._cut.at(0, number)]
            for begin, end in ranges
            for number in range(begin, end)
        )
        return self._source.read(plan, self.total or 0, self._one)


class Forward:
    """Of an input without length: read from the front, and again from the front when an earlier batch comes back."""

    total: int | None = None

    def __init__(self, source: Source, one: Pass) -> None:
        self.found: int | None = None
        self._source = source
        self._one = replace(one, rank=0, size=1, even=False)
        self._at = 0
        self._batches: Iterator[Any] | None = None

    def read(self, ranges: Iterable[Range]) -> Iterator[Any]:
        for begin, end in ranges:
            if begin < self._at and getattr(self._source, "once", False):
                _log.warning("batches %d to %d came back, and a generator cannot be read again: left out", begin, end)
                yield from [LEFT_OUT] * (end - begin)
                continue
            if self._batches is None or begin < self._at:
                self._batches, self._at = self._source.open(self._one), 0
            yield from self._from(begin, end, self._batches)
            if self.found is not None:
                return

    def _from(self, begin: int, end: int, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self._at += 1
            if self._at > begin:
                yield batch
            if self._at == end:
                return
        self.found = self._at
