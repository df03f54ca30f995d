import math
import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from shoal._lib.chart import HEIGHT, WIDTH, Panel, draw

NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=32)


def lines(svg: str) -> list[list[tuple[float, float]]]:
    found = re.findall(r'<polyline points="([^"]*)"', svg)
    return [[tuple(map(float, point.split(","))) for point in one.split()] for one in found]  # type: ignore[misc]


def test_every_line_is_drawn_in_its_panel_with_its_name_below() -> None:
    svg = draw([Panel("loss", "s", "loss", {"a": [(0, 3), (1, 2)], "b": [(0, 3), (2, 1)]})], title="Two & more")
    ElementTree.fromstring(svg)
    assert len(lines(svg)) == 2 and ">a</text>" in svg and ">b</text>" in svg and "Two &amp; more" in svg


def test_up_is_up_and_right_is_right() -> None:
    ((first, second),) = lines(draw([Panel("t", "x", "y", {"a": [(0, 0), (1, 1)]})]))
    assert second[0] > first[0] and second[1] < first[1]


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=20), st.booleans())
def test_whatever_the_points_are_the_picture_is_sound_and_holds_them(
    points: list[tuple[float, float]], log: bool
) -> None:
    svg = draw([Panel("t", "x", "y", {"a": points}, log_up=log)])
    ElementTree.fromstring(svg)
    (line,) = lines(svg)
    for x, y in line:
        assert math.isfinite(x) and -1 <= x <= WIDTH + 1 and -1 <= y <= HEIGHT + 1
