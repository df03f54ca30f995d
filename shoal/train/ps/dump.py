"""A shard as data, and how it moves into shards that are cut in another way.

A dump names its layout, so ranges of parameters can be found in it whatever the number of servers was. Values and
vectors of the state move element by element. The few numbers that torch keeps per parameter (`step` …) are the same in
every chunk of a group: all its chunks are stepped by every update.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from shoal.train.errors import BadCheckpoint
from shoal.train.ps.header import HELD, HELD_SCALE, VERSION
from shoal.train.ps.layout import Layout, Part, Piece
from shoal.train.ps.memory import Memory
from shoal.train.ps.stepper import Home

FORMAT = 1
PARAMS, HELD_NAME, STATE = "params", "held", "state."


@dataclass(frozen=True)
class Dump:
    """`meta` is JSON; `tensors` are flat over the part: `params`, `state.<name>` …, and `held` where something is."""

    meta: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @cached_property
    def part(self) -> Part:
        return Layout.from_json(self.meta["layout"]).part(int(self.meta["server"]))


def taken(memory: Memory, homes: Sequence[Home], held: Tensor | None) -> Dump:
    """The dump of a live shard; its tensors are views."""
    header, written = memory.header, memory.read_recipe()
    names = [name for name, _ in memory.schema.scalars]
    meta = {
        "format": FORMAT,
        "layout": memory.description["layout"],
        "server": memory.description["server"],
        "applier": memory.description["applier"],
        "recipe": written["recipe"],
        "clock": written["clock"],
        "version": header[VERSION],
        "born": [int(home.row[0]) for home in homes],
        "scalars": {name: [home.scalars[name].item() for home in homes] for name in names},
        "workers": [[worker, seq, clock, int(member)] for worker, seq, clock, member in header.workers()],
        "held": header[HELD],
        "held_scale": float(header.numbers[HELD_SCALE]),
    }
    tensors = {PARAMS: memory.params, **{STATE + name: flat for name, flat in memory.vectors.items()}}
    return Dump(meta, {**tensors, HELD_NAME: held} if held is not None else tensors)


def check(memory: Memory, dumps: Sequence[Dump], alone: bool = False) -> None:
    """BadCheckpoint unless these dumps are all parts (`alone`: this very part) of the same model and optimizer."""
    if not dumps:
        raise BadCheckpoint("a checkpoint with no server's part; take another checkpoint")
    for dump in dumps:
        if dump.meta["format"] != FORMAT:
            raise BadCheckpoint(
                f"a part of format {dump.meta['format']}, not {FORMAT}; another version of Shoal reads it"
            )
        difference = dump.part.layout.differs(memory.part.layout)
        if difference:
            raise BadCheckpoint(f"the checkpoint (here) is of another model than this run's (there): {difference}")
        theirs, mine = (
            _trained(dump.meta, dump.meta["applier"]),
            _trained(memory.read_recipe(), memory.description["applier"]),
        )
        if theirs != mine:
            raise BadCheckpoint(
                f"the checkpoint was trained with {theirs}, this run with {mine}; use the same optimizer"
            )
    if alone:
        if dumps[0].part != memory.part:
            raise BadCheckpoint(
                f"this is the part of server {dumps[0].part.server}, not {memory.part.server}; give its own"
            )
        return
    missing = set(range(dumps[0].part.layout.servers)) - {dump.part.server for dump in dumps}
    if missing:
        raise BadCheckpoint(f"the parts of servers {sorted(missing)} are missing; give all of them")


def move(dumps: Sequence[Dump], memory: Memory, homes: Sequence[Home]) -> None:
    """Copies what lies in this part from wherever it lies in the dumps."""
    flats = {PARAMS: memory.params, **{STATE + name: flat for name, flat in memory.vectors.items()}}
    for dump in dumps:
        shared = list(_shared(dump.part, memory.part))
        for name, flat in flats.items():
            for there, here, count in shared:
                flat[here : here + count].copy_(dump.tensors[name][there : there + count])
    for chunk, home in zip(memory.part.chunks, homes, strict=True):
        _move_numbers(dumps, chunk.group, home)


def _shared(there: Part, here: Part) -> Iterator[tuple[int, int, int]]:
    """(offset in that part, offset in this part, count) of the ranges of parameters that both hold."""
    theirs: dict[int, list[Piece]] = {}
    for piece in there.pieces:
        theirs.setdefault(piece.param, []).append(piece)
    for mine in here.pieces:
        for piece in theirs.get(mine.param, ()):
            begin, end = max(mine.begin, piece.begin), min(mine.begin + mine.count, piece.begin + piece.count)
            if begin < end:
                yield (
                    piece.offset - there.offset + begin - piece.begin,
                    mine.offset - here.offset + begin - mine.begin,
                    end - begin,
                )


def _move_numbers(dumps: Sequence[Dump], group: int, home: Home) -> None:
    for dump in dumps:
        for chunk, born in zip(dump.part.chunks, dump.meta["born"], strict=True):
            if born and chunk.group == group:
                for name, place in home.scalars.items():
                    place.fill_(dump.meta["scalars"][name][chunk.index])
                home.row[0] = 1
                return


def _trained(written: Mapping[str, Any], applier: str) -> str:
    return str(written["recipe"]["name"]) if written["recipe"] else applier
