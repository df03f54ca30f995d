"""Names of operations: those of different workers come together by name, so all must count alike."""

from __future__ import annotations

from collections import Counter

_unnamed: Counter[tuple[str, int | None]] = Counter()


def name_of(kind: str, name: str | None, set_number: int | None = 0) -> str:
    """The operation's name; one without is the so-and-so-many-th of its kind in its set, on every worker there."""
    if name:
        return f"{kind}.{name}"
    _unnamed[kind, set_number] += 1
    return f"{kind}.noname.{_unnamed[kind, set_number]}"


def forget() -> None:
    """Counting begins anew: workers that begin together must agree, also one that was restarted."""
    _unnamed.clear()
