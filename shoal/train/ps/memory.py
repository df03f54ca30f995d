"""Where the things of a shard lie in its segment: header, description, recipe, stamps, parameters, state, journal.

header        counters and what is being done (header.py)
description   JSON: layout, server, applier, schema; never changes
recipe        JSON, twice: the one that RECIPE_AT names counts, the other is written next
stamps        one int64 per chunk: odd while it is written
rows          per chunk: whether it has optimizer state, and the numbers of that state
params        the part, flat; then each vector of the state, flat
journal       one row, and room for every range of one chunk that is about to change
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.train.errors import BadCheckpoint, NoRoom
from shoal.train.ps.header import META, RECIPE, RECIPE_AT, WORDS, Header
from shoal.train.ps.layout import Layout, Part
from shoal.train.ps.stepper import Schema
from shoal.train.wire.segment import PAGE, Segment

_WORD = 8
_BESIDE = 2  # ranges of a chunk that may change beside parameters and state: what is held, a worker's slot

Words = np.ndarray[Any, np.dtype[Any]]


class Memory:
    """The mapped segment of a shard, cut into its parts."""

    def __init__(self, segment: Segment, description: Mapping[str, Any]) -> None:
        self.segment = segment
        self.description = description
        self.part: Part = Layout.from_json(description["layout"]).part(int(description["server"]))
        vectors, scalars = description["vectors"], description["scalars"]
        self.schema = Schema(tuple(tuple(names) for names in vectors), tuple((n, d) for n, d in scalars))
        self.header = _header(segment)
        self.dtype: torch.dtype = getattr(torch, self.part.layout.dtype)
        room = _Room(self.header[META], self.header[RECIPE], self.part, self.schema)
        chunks, width = len(self.part.chunks), 1 + len(self.schema.scalars)
        self.stamps: Words = segment.array(np.int64, room.stamps, chunks)
        self.rows: Words = segment.array(np.int64, room.rows, chunks * width).reshape(chunks, width)
        self.journal_row: Words = segment.array(np.int64, room.journal_row, width)
        self.params: Tensor = segment.tensor(self.dtype, room.params, self.part.count)
        self.vectors: dict[str, Tensor] = {
            name: segment.tensor(self.dtype, at, self.part.count) for name, at in room.vectors.items()
        }
        self.journal: Tensor = segment.tensor(self.dtype, room.journal, room.longest * room.ranges)
        self._room = room

    @classmethod
    def create(cls, path: str | Path, description: Mapping[str, Any], recipe: Mapping[str, Any]) -> Memory:
        """Fresh, and not yet sealed."""
        text = json.dumps(description).encode()
        recipe_room = 4 * len(json.dumps(recipe)) + 4096  # numbers may grow longer, and clocks
        part = Layout.from_json(description["layout"]).part(int(description["server"]))
        schema = Schema(tuple(tuple(names) for names in description["vectors"]), tuple(description["scalars"]))
        segment = Segment.create(path, _Room(len(text), recipe_room, part, schema).size, touch=True)
        header = _header(segment)
        header[META], header[RECIPE] = len(text), recipe_room
        segment.view(WORDS * _WORD, len(text))[:] = text
        memory = cls(segment, description)
        memory.write_recipe(recipe)
        return memory

    @classmethod
    def open(cls, path: str | Path) -> Memory:
        """What `create` made and the shard sealed. BadCheckpoint for anything else."""
        segment = Segment.open(path)
        if segment.size < WORDS * _WORD or not _header(segment).sealed:
            raise BadCheckpoint(f"{path} ({segment.size} bytes) is no shard that was ever finished; remove it")
        length = _header(segment)[META]
        return cls(segment, json.loads(bytes(segment.view(WORDS * _WORD, length))))

    def scalar(self, chunk: int, column: int, dtype: str) -> Tensor:
        """One number of a chunk's state, as torch keeps it: a tensor without dimensions."""
        width = 1 + len(self.schema.scalars)
        at = self._room.rows + (chunk * width + 1 + column) * _WORD
        return self.segment.tensor(getattr(torch, dtype), at, 1)[0]

    def read_recipe(self) -> dict[str, Any]:
        at = self._room.recipe + self.header[RECIPE_AT] * self.header[RECIPE]
        text = bytes(self.segment.view(at, self.header[RECIPE]))
        found: dict[str, Any] = json.loads(text[: text.index(b"\0")])
        return found

    def write_recipe(self, recipe: Mapping[str, Any]) -> None:
        """Whole or not at all: beside the one that counts, then counted."""
        text = json.dumps(recipe).encode() + b"\0"
        if len(text) > self.header[RECIPE]:
            raise NoRoom(f"the optimizer's hyperparameters grew to {len(text)} bytes; "
                         f"there is room for {self.header[RECIPE]}: start the run anew with them")  # fmt: skip
        other = 1 - self.header[RECIPE_AT]
        self.segment.view(self._room.recipe + other * self.header[RECIPE], len(text))[:] = text
        self.header[RECIPE_AT] = other


class _Room:
    """Byte offsets, from sizes alone."""

    def __init__(self, description: int, recipe: int, part: Part, schema: Schema) -> None:
        names = schema.names
        width = (1 + len(schema.scalars)) * _WORD
        self.longest = max((chunk.count for chunk in part.chunks), default=0)
        self.ranges = 1 + len(names) + _BESIDE
        at = _lines(WORDS * _WORD + description)
        self.recipe, at = at, _lines(at + 2 * recipe)
        self.stamps, at = at, _lines(at + len(part.chunks) * _WORD)
        self.rows, at = at, _lines(at + len(part.chunks) * width)
        self.journal_row, at = at, _pages(at + width)
        self.params, at = at, _pages(at + part.bytes)
        self.vectors: dict[str, int] = {}
        for name in names:
            self.vectors[name], at = at, _pages(at + part.bytes)
        self.journal = at
        self.size = at + self.longest * self.ranges * part.layout.itemsize


def _header(segment: Segment) -> Header:
    return Header(segment.array(np.int64, 0, WORDS), segment.array(np.float64, 0, WORDS))


def _lines(offset: int) -> int:
    return -(-offset // 64) * 64


def _pages(offset: int) -> int:
    return -(-offset // PAGE) * PAGE
