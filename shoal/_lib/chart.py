"""Lines on axes, as one SVG text: panels side by side, a legend below. Knows nothing of what is drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Iterator, List, Mapping, Sequence, Tuple

Point = Tuple[float, float]

WIDTH, HEIGHT = 420, 300  # of one panel
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 30, 46
TICKS = 5
COLOURS = ("#1f6fb2", "#d9541e", "#2a8f4f", "#8e4fb0", "#b8860b", "#c0306a", "#4a5a68", "#0e9aa7")


@dataclass(frozen=True)
class Panel:
    """One pair of axes with named lines; the same name has the same colour in every panel."""

    title: str
    across: str
    up: str
    lines: Mapping[str, Sequence[Point]]
    log_up: bool = False


def draw(panels: Sequence[Panel], title: str = "") -> str:
    """The panels as an SVG document."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    head = 26 if title else 0
    width, height = WIDTH * len(panels), HEIGHT + head + 20 * math.ceil(len(names) / _per_row(len(panels)))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11" fill="#333">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    if title:
        parts.append(_text(width / 2, 18, title, size=14, anchor="middle"))
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    for number, panel in enumerate(panels):
        parts.append(f'<g transform="translate({number * WIDTH},{head})">')
        parts.extend(_panel(panel, colours))
        parts.append("</g>")
    parts.extend(_legend(names, colours, head + HEIGHT, len(panels)))
    return "\n".join([*parts, "</svg>\n"])


def _panel(panel: Panel, colours: Mapping[str, str]) -> Iterator[str]:
    drawn = {name: _clean(points, panel.log_up) for name, points in panel.lines.items()}
    every = [point for points in drawn.values() for point in points]
    across = _Axis.over([x for x, _ in every], LEFT, WIDTH - RIGHT)
    up = _Axis.over([y for _, y in every], HEIGHT - BOTTOM, TOP, log=panel.log_up)
    yield _text((LEFT + WIDTH - RIGHT) / 2, 18, panel.title, size=12, anchor="middle")
    for value in across.ticks():
        x = across.at(value)
        yield f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#eee"/>'
        yield _text(x, HEIGHT - BOTTOM + 14, _number(value), anchor="middle")
    for value in up.ticks():
        y = up.at(value)
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#eee"/>'
        yield _text(LEFT - 6, y + 4, _number(value), anchor="end")
    yield (
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="#888"/>'
        + _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, panel.across, anchor="middle")
        + f'<g transform="translate(14,{(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)">'
        + _text(0, 0, panel.up, anchor="middle")
        + "</g>"
    )
    for name, points in drawn.items():
        path = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in points)
        yield f'<polyline points="{path}" fill="none" stroke="{colours[name]}" stroke-width="1.8"/>'
        if len(points) < 25:
            for x, y in points:
                yield f'<circle cx="{across.at(x):.1f}" cy="{up.at(y):.1f}" r="2.5" fill="{colours[name]}"/>'


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    @classmethod
    def over(cls, values: Sequence[float], begin: float, end: float, log: bool = False) -> _Axis:
        low, high = (min(values), max(values)) if values else (1.0, 10.0)
        if log:
            low, high = math.log10(low), math.log10(high)
        if high - low <= 1e-9 * max(abs(low), abs(high)):
            room = max(0.5, abs(high) / 2)
            low, high = low - room, high + room
        return cls(low, high, begin, end, log)

    def at(self, value: float) -> float:
        place = math.log10(value) if self.log else value
        return self.begin + (place - self.low) / (self.high - self.low) * (self.end - self.begin)

    def ticks(self) -> List[float]:
        """Round numbers within the axis."""
        if self.log:
            whole = [10.0**e for e in range(math.ceil(self.low), math.floor(self.high) + 1)]
            return whole if len(whole) > 1 else [10**self.low, 10**self.high]
        rough = (self.high - self.low) / TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
        first = math.ceil(self.low / step)
        return [n * step for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _clean(points: Sequence[Point], log: bool) -> List[Point]:
    """Without what no axis can show."""
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y) and (y > 0 or not log)]


def _legend(names: Sequence[str], colours: Mapping[str, str], top: int, panels: int) -> Iterator[str]:
    columns = _per_row(panels)
    for number, name in enumerate(names):
        x, y = LEFT + (number % columns) * 200, top + 12 + 20 * (number // columns)
        yield f'<line x1="{x}" y1="{y}" x2="{x + 22}" y2="{y}" stroke="{colours[name]}" stroke-width="3"/>'
        yield _text(x + 28, y + 4, name)


def _per_row(panels: int) -> int:
    return max(1, (WIDTH * panels - LEFT) // 200)


def _text(x: float, y: float, words: str, size: int = 11, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(words)}</text>'


def _number(value: float) -> str:
    if value and (abs(value) >= 1e5 or abs(value) < 1e-3):
        return f"{value:.0e}".replace("e+0", "e").replace("e-0", "e-")
    return f"{value:.4g}"
