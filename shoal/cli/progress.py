"""What a rank reports of its progress (done, total, fraction and named numbers), as a few words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OWN = frozenset({"done", "total", "fraction", "at"})


def fraction(progress: Mapping[str, Any] | None) -> float | None:
    """0 to 1; None when the script reports none."""
    value = (progress or {}).get("fraction")
    return min(1.0, max(0.0, float(value))) if isinstance(value, (int, float)) else None


def progress_text(progress: Mapping[str, Any] | None) -> str:
    """`42% loss=0.31`: the fraction, then the numbers the script reported."""
    part = fraction(progress)
    words = [] if part is None else [f"{part * 100:.0f}%"]
    return " ".join(
        [*words, *(f"{name}={_short(value)}" for name, value in (progress or {}).items() if name not in _OWN)]
    )


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
