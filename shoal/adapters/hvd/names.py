"""Names of operations: those of different workers come together by name, so all must count alike."""

from __future__ import annotations

from collections import Counter

_unnamed: Counter[str] = Counter()


def name_of(kind: str, name: str | None) -> str:
    """The operation's name; one without is the so-and-so-many-th of its kind, on every worker."""
    if name:
        return f"{kind}.{name}"
    _unnamed[kind] += 1
    return f"{kind}.noname.{_unnamed[kind]}"


def forget() -> None:
    """Counting begins anew: workers that begin together must agree, also one that was restarted."""
    _unnamed.clear()
