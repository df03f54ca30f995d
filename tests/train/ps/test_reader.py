"""Readers on the same node copy while the server writes, and never keep half of a chunk."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from shoal.train.errors import WaitedTooLong
from shoal.train.ps.layout import Chunk, Layout, ParamInfo
from shoal.train.ps.orders import Apply, Contribution
from shoal.train.ps.shard import ADD, Shard

PART = Layout.of([ParamInfo("a", 5000), ParamInfo("b", 3000)], servers=2, chunk_bytes=4096).part(1)


def shard_at(folder: Path) -> Shard:
    shard = Shard.create(folder / "shard", PART, ADD)
    shard.fill(torch.zeros(PART.count))
    return shard


def test_pieces_are_copied_where_they_belong(tmp_path: Path) -> None:
    shard = Shard.create(tmp_path / "shard", PART, ADD)
    reader = Shard.reading(shard.path)
    assert not reader.initialised
    shard.fill(torch.arange(PART.count).float())
    assert reader.initialised
    targets = [(torch.zeros(one.count), one.offset - PART.offset, one.count) for one in PART.pieces]
    assert reader.copy(targets) == 0
    for target, at, count in targets:
        assert torch.equal(target, torch.arange(at, at + count).float())
    assert reader.version == 0
    shard.obey(Apply((Contribution(0, 1),)), {0: torch.ones(PART.count)})
    assert reader.version == 1 and reader.copy(targets) == 1
    assert targets[0][0][0] == targets[0][1] + 1


def test_what_was_written_meanwhile_is_copied_again(tmp_path: Path) -> None:
    shard = shard_at(tmp_path)
    reader, asked = Shard.reading(shard.path), []
    out = torch.zeros(PART.count)

    def copy(chunks: Sequence[Chunk]) -> None:
        asked.append([chunk.index for chunk in chunks])
        for chunk in chunks:
            out[chunk.local : chunk.local + chunk.count] = reader.params[chunk.local : chunk.local + chunk.count]
        if len(asked) == 1:
            shard.obey(Apply((Contribution(0, 1),)), {0: torch.ones(PART.count)})

    assert reader.read(copy) == 0, "the version before the first copy"
    everything = list(range(len(PART.chunks)))
    assert asked == [everything, everything]
    assert all((out[c.local : c.local + c.count] == 1).all() for c in PART.chunks)


def test_no_chunk_is_ever_torn(tmp_path: Path) -> None:
    shard, slots = shard_at(tmp_path), {0: torch.ones(PART.count)}
    done = threading.Event()

    def write() -> None:
        for seq in range(1, 400):
            shard.obey(Apply((Contribution(0, seq),)), slots)
        done.set()

    reader, out = Shard.reading(shard.path), torch.zeros(PART.count)
    writer = threading.Thread(target=write)
    writer.start()
    last = torch.zeros(len(PART.chunks))
    pairs = [(out, 0, PART.count)]
    while not done.is_set():
        version = reader.copy(pairs)
        for chunk in PART.chunks:
            values = out[chunk.local : chunk.local + chunk.count]
            assert (values == values[0]).all() and values[0] >= version and values[0] >= last[chunk.index]
            last[chunk.index] = values[0]
    writer.join()


def test_a_chunk_that_stays_half_written_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    shard = shard_at(tmp_path)
    shard._memory.stamps[2] += 1
    with pytest.raises(WaitedTooLong, match=r"chunk 2 of shard stays half written; server-1"):
        Shard.reading(shard.path).copy([(torch.zeros(PART.count), 0, PART.count)], patience=0.0)
