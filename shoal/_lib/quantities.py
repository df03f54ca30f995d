"""Sizes and durations as people write them: `2GiB`, `512M`, `1h30m`, `90`."""

from __future__ import annotations

import re

_SIZE_UNITS = {
    "": 1, "b": 1,
    "k": 1000, "kb": 1000, "kib": 1 << 10, "ki": 1 << 10,
    "m": 1000**2, "mb": 1000**2, "mib": 1 << 20, "mi": 1 << 20,
    "g": 1000**3, "gb": 1000**3, "gib": 1 << 30, "gi": 1 << 30,
    "t": 1000**4, "tb": 1000**4, "tib": 1 << 40, "ti": 1 << 40,
}  # fmt: skip
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(d|h|ms|m|s)")
_PLAIN_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def parse_size(text: str) -> int:
    """Bytes of `2GiB`, `512M`, `1.5g`, `1048576`; ValueError says which forms there are."""
    match = _SIZE.fullmatch(text.strip())
    unit = match.group(2).lower() if match else None
    if match is None or unit not in _SIZE_UNITS:
        raise ValueError(f"{text!r} is not a size; write a number and a unit, such as 512MiB or 2GiB")
    return int(float(match.group(1)) * _SIZE_UNITS[unit])


def parse_duration(text: str) -> float:
    """Seconds of `20m`, `1h30m`, `45s`, `2d`, or a plain number of seconds; ValueError says which forms there are."""
    bare = text.strip().replace(" ", "").lower()
    if _PLAIN_NUMBER.fullmatch(bare):
        return float(bare)
    parts = _DURATION_PART.findall(bare)
    if not parts or "".join(number + unit for number, unit in parts) != bare:
        raise ValueError(f"{text!r} is not a duration; write for example 45s, 20m, 1h30m or 2d")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def format_size(count: float) -> str:
    """`2.0 GiB`: one decimal, binary units."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            return f"{int(count)} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def format_duration(seconds: float) -> str:
    """`1h30m`, `20m`, `45s`: the two largest units, so that it reads at a glance."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    left = round(seconds)
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if left >= size:
            parts.append(f"{left // size}{unit}")
            left %= size
    return "".join(parts[:2])
