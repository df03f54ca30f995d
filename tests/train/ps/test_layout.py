"""Every element of every parameter lies in exactly one chunk of one server, evenly, and the same on every machine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.train.errors import BadModel
from shoal.train.ps.layout import LINE, Layout, ParamInfo

PARAMS = st.lists(
    st.builds(
        ParamInfo,
        name=st.text("abc.", min_size=1, max_size=6),
        numel=st.one_of(st.integers(0, 40), st.integers(0, 5000)),
        dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
        group=st.integers(0, 2),
    ),
    min_size=1,
    max_size=12,
).filter(lambda params: any(one.numel for one in params))
LAYOUTS = st.builds(Layout.of, PARAMS, servers=st.integers(1, 5), chunk_bytes=st.sampled_from([256, 1024, 1 << 20]))


@settings(max_examples=60)
@given(LAYOUTS)
def test_every_element_lies_somewhere_exactly_once(layout: Layout) -> None:
    places: dict[int, tuple[int, int]] = {}
    for piece in layout.pieces:
        for step in range(piece.count):
            assert places.setdefault(piece.offset + step, (piece.param, piece.begin + step)) == (
                piece.param,
                piece.begin + step,
            )
    assert sorted(places.values()) == [(at, i) for at, one in enumerate(layout.params) for i in range(one.numel)]


@settings(max_examples=60)
@given(LAYOUTS)
def test_chunks_cover_the_pieces_in_order_and_keep_to_one_group(layout: Layout) -> None:
    covered: set[int] = set()
    group_at: dict[int, int] = {}
    position = 0
    for server, part in enumerate(layout.parts):
        assert (part.server, part.offset) == (server, position)
        for index, chunk in enumerate(part.chunks):
            assert (chunk.index, chunk.local) == (index, chunk.offset - part.offset)
            assert chunk.offset % LINE == 0 and chunk.offset == position and chunk.count > 0
            covered.update(range(chunk.offset, chunk.offset + chunk.count))
            group_at.update(dict.fromkeys(range(chunk.offset, chunk.offset + chunk.count), chunk.group))
            position += -(-chunk.count // LINE) * LINE
        assert part.offset + part.count == position
        assert all(part.offset <= one.offset and one.offset + one.count <= position for one in part.pieces)
    held = {piece.offset + step for piece in layout.pieces for step in range(piece.count)}
    assert covered == held and layout.count == position
    for piece in layout.pieces:
        assert {group_at[piece.offset + step] for step in range(piece.count)} == {layout.params[piece.param].group}
    assert sum(len(part.pieces) for part in layout.parts) == len(layout.pieces)


@given(LAYOUTS)
def test_it_travels_as_json(layout: Layout) -> None:
    again = Layout.from_json(json.loads(json.dumps(layout.to_json())))
    assert again == layout and again.parts == layout.parts and again.pieces == layout.pieces
    assert (again.fingerprint, again.hash) == (layout.fingerprint, layout.hash)
    assert layout.differs(again) is None and 0 <= layout.hash < 2**63


MODELS = {
    "one huge embedding": [("embedding", 1_000_000 * 64), *((f"mlp.{i}", n) for i, n in enumerate((4096, 64, 64, 1)))],
    "resnet-like": [(f"conv{i}", 64 * 64 * 9 * (1 + i % 4) ** 2) for i in range(50)] + [("fc", 2048 * 1000)],
    "transformer": [("wte", 50257 * 768)]
    + [(f"h{i}.{n}", s) for i in range(12) for n, s in (("a", 2359296), ("b", 768))],
    "small": [("w1", 784 * 128), ("b1", 128), ("w2", 1280), ("b2", 10)],
}


@pytest.mark.parametrize("servers", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("model", MODELS)
def test_real_models_are_spread_evenly(model: str, servers: int) -> None:
    layout = Layout.of([ParamInfo(name, numel) for name, numel in MODELS[model]], servers)
    balance = layout.balance()
    assert balance.worst <= 1.05, balance
    assert sum(balance.bytes) == layout.bytes
    assert layout.bytes <= 1.02 * 4 * sum(numel for _, numel in MODELS[model])


def test_weight_decay_groups_are_spread_evenly_too() -> None:
    params = [ParamInfo(f"w{i}", 1_000_000, group=0) for i in range(12)]
    params += [ParamInfo(f"b{i}", 1000, group=1) for i in range(12)]
    assert Layout.of(params, 4).balance().worst <= 1.05


def test_neighbours_lie_on_different_servers() -> None:
    layout = Layout.of([ParamInfo("w", 8 << 18)], servers=4)
    first = [part.pieces[0].begin for part in layout.parts]
    assert first == [0, 1 << 18, 2 << 18, 3 << 18]


def test_with_one_server_a_parameter_is_one_piece_in_the_users_order() -> None:
    layout = Layout.of([ParamInfo("a", 1_000_003), ParamInfo("b", 17), ParamInfo("c", 600_000)])
    assert [(one.param, one.begin, one.offset, one.count) for one in layout.pieces] == [
        (0, 0, 0, 1_000_003), (1, 0, 1_000_003, 17), (2, 0, 1_000_020, 600_000),
    ]  # fmt: skip
    assert layout.pieces_of(1) == (layout.pieces[1],)


def test_doubles_stay_doubles() -> None:
    layout = Layout.of([ParamInfo("a", 10, "float64"), ParamInfo("b", 10, "bfloat16")])
    assert (layout.dtype, layout.itemsize) == ("float64", 8)
    assert Layout.of([ParamInfo("b", 10, "bfloat16")]).dtype == "float32"


def test_the_first_difference_is_named() -> None:
    mine = Layout.of([ParamInfo("a", 4, shape=(2, 2)), ParamInfo("b", 3)])
    assert "b 3" in str(mine.differs(Layout.of([ParamInfo("a", 4, shape=(2, 2)), ParamInfo("b", 4)])))
    assert "a [2, 2]" in str(mine.differs(Layout.of([ParamInfo("a", 4, shape=(4, 1)), ParamInfo("b", 3)])))
    assert "only here: b" in str(mine.differs(Layout.of([ParamInfo("a", 4, shape=(2, 2))])))
    assert "only there: c" in str(mine.differs(Layout.of([*mine.params, ParamInfo("c", 1)])))
    assert mine.differs(Layout.of(mine.params, servers=3)) is None
    assert mine.fingerprint == Layout.of(mine.params, servers=3).fingerprint
    assert mine.hash != Layout.of(mine.params, servers=3).hash


def test_nothing_to_exchange_is_refused() -> None:
    with pytest.raises(BadModel, match="no parameters"):
        Layout.of([])
    with pytest.raises(BadModel, match="no parameters"):
        Layout.of([ParamInfo("empty", 0)])
    with pytest.raises(ValueError, match="0 servers"):
        Layout.of([ParamInfo("a", 1)], servers=0)


def test_rules_and_layout_need_no_torch() -> None:
    code = (
        "import sys, shoal.train.ps.rules, shoal.train.ps.layout, shoal.train.ps.scale; print('torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
