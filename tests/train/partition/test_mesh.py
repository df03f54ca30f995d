"""Workers in rows and columns, and crews of pipelines, told from numbers alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from shoal.errors import BadSpec
from shoal.strategy import parse
from shoal.train.errors import BadModel
from shoal.train.partition import mesh
from shoal.train.partition.crew import Crew
from shoal.train.partition.mesh import COPY, PART, Layout


@given(st.integers(1, 5), st.integers(1, 5), st.data())
def test_a_line_holds_those_who_differ_in_one_dimension(copies: int, parts: int, data: st.DataObject) -> None:
    layout = Layout((COPY, PART), (copies, parts))
    rank = data.draw(st.integers(0, layout.workers - 1))
    for name, other in ((COPY, PART), (PART, COPY)):
        line = layout.line(rank, name)
        assert rank in line and len(line) == layout.size(name)
        assert {layout.place(one)[other] for one in line} == {layout.place(rank)[other]}
        assert [layout.place(one)[name] for one in line] == list(range(layout.size(name)))


def test_neighbours_in_rank_share_a_copy() -> None:
    assert Layout((COPY, PART), (2, 2)).line(0, PART) == [0, 1]


def test_workers_that_are_left_over_are_refused() -> None:
    assert mesh.divided(6, 3, "size") == 2
    with pytest.raises(BadSpec, match="6 workers cannot be divided by size=4: choose one of 1, 2, 3, 6"):
        mesh.divided(6, 4, "size")
    with pytest.raises(BadSpec, match="size=8 needs 8 workers and there are 6"):
        mesh.divided(6, 8, "size")


def test_a_model_lies_on_one_kind_of_device() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1, device="meta"))
    with pytest.raises(BadModel, match=r"2 kinds of device \('0.weight' on cpu, '1.weight' on meta\)"):
        mesh.device_kind(model)
    with pytest.raises(BadModel, match="has no values"):
        mesh.device_kind(model[1])
    assert mesh.device_kind(model[0]) == "cpu"


def crew(options: str, workers: int, rank: int = 0) -> Crew:
    return Crew.of(parse(f"pipeline:{options}".rstrip(":")).options, workers, rank)


def test_equal_stages_make_copies_beside_each_other() -> None:
    for rank in range(4):
        one = crew("stages=2", 4, rank)
        assert (one.copies, one.copy, one.stage, one.relayed) == (2, rank // 2, rank % 2, False)
        assert one.line == [[0, 1], [2, 3]][rank // 2] and one.ranks == [[0, 2], [1, 3]]
        assert one.holders == {0: 0, 1: 1} and one.holder(1) == one.line[1]


def test_interleaved_workers_have_two_stages() -> None:
    one = crew("schedule=interleaved", 2, 1)
    assert one.stages == 4 and one.mine == [1, 3] and one.holders == {0: 0, 1: 1, 2: 0, 3: 1}


def test_unequal_stages_make_one_pipeline() -> None:
    found = [crew("replicas=2x1", 3, rank) for rank in range(3)]
    assert [(one.stage, one.member) for one in found] == [(0, 0), (0, 1), (1, 0)]
    assert all(one.relayed and one.copies == 1 and one.line == [0, 1, 2] for one in found)


def test_kinds_of_device_make_one_pipeline() -> None:
    one = crew("devices=cpuxcuda", 2, 0)
    assert one.relayed and one.stages == 2 and one.device(torch.device("cpu"), "cpu") == torch.device("cpu")
    if not torch.cuda.is_available():
        with pytest.raises(BadModel, match="stage 1 shall compute on cuda and worker-1 sees no card"):
            crew("devices=cpuxcuda", 2, 1).device(torch.device("cpu"), "cpu")


@pytest.mark.parametrize(
    ("options", "workers", "says"),
    [
        ("stages=3", 4, "cannot make pipelines of 3 stages"),
        ("devices=cpuxtpu", 2, "names 'tpu'"),
        ("devices=cpu", 2, "cannot|needs|2 workers"),
        ("replicas=2x1,schedule=interleaved", 3, "interleaved needs stages with equally many workers"),
        ("stages=3,devices=cpuxcpu", 3, "names 2 stages and there are 3"),
    ],
)
def test_what_does_not_go_together_is_refused(options: str, workers: int, says: str) -> None:
    if options == "devices=cpu":
        assert crew(options, workers).widths == [2]  # one stage, shared by all
        return
    with pytest.raises(BadSpec, match=says):
        crew(options, workers)
