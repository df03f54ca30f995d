"""What a rank says of its progress, in words (`progress 3/10 loss=0.25`, `progress 42%`) or as a bar (`45%|████`)."""

from __future__ import annotations

import math
import re
import threading
from typing import Any, Dict, Optional

_MOST_VALUES = 32
_WORDS = re.compile(rb"progress\s+(?:(\d+(?:\.\d+)?)\s*/\s*(\d+(?:\.\d+)?)|(\d+(?:\.\d+)?)\s*%)?(?=\s|$)")
_VALUE = re.compile(rb"(?<!\S)([A-Za-z_][\w./-]{0,63})=([^\s=]{1,40})(?!\S)")
_BAR = re.compile(rb"(\d{1,3})%\|[^|]*\|\s*(?:(\d+)/(\d+)(?!\S))?")
_BAR_START = re.compile(rb"(\d{1,3})%\|")


def parse(line: bytes) -> Optional[Dict[str, Any]]:
    """The facts in a line: done, total, fraction (0 to 1) and the values it names; None when it tells none."""
    if line.startswith(b"progress "):
        return _parse_words(line)
    return _parse_bar(line) if b"%|" in line else None


def _parse_words(line: bytes) -> Optional[Dict[str, Any]]:
    match = _WORDS.match(line)
    facts: Dict[str, Any] = {}
    if match and match.group(1):
        facts = _share(_number(match.group(1)), _number(match.group(2)))
    elif match and match.group(3):
        facts = {"fraction": min(1.0, float(match.group(3)) / 100)}
    for name, value in _VALUE.findall(line)[:_MOST_VALUES]:
        number = _number(value)
        if number is not None:
            facts[name.decode()] = number
    return facts or None


def _parse_bar(line: bytes) -> Optional[Dict[str, Any]]:
    whole = _BAR.search(line)
    if whole and whole.group(2):
        return _share(int(whole.group(2)), int(whole.group(3)))
    start = _BAR_START.search(line)
    return {"fraction": min(1.0, int(start.group(1)) / 100)} if start else None


def _share(done: Any, total: Any) -> Dict[str, Any]:
    facts = {"done": done, "total": total}
    if total:
        facts["fraction"] = min(1.0, done / total)
    return facts


def _number(text: bytes) -> Any:
    """An int, a float, the word `nan` or `inf` (JSON has no such numbers, and they are worth knowing), or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    if not math.isfinite(value):
        return str(value)
    return int(value) if text.isdigit() and len(text) < 16 else value


class Board:
    """The newest progress of every rank, and which of it nobody has fetched yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._facts: Dict[str, Dict[str, Any]] = {}
        self._changed: Dict[str, Dict[str, Any]] = {}

    @property
    def changed(self) -> bool:
        return bool(self._changed)

    def post(self, member: str, facts: Dict[str, Any]) -> bool:
        """New facts replace old ones of the same name, the others stay; False when nothing is new."""
        with self._lock:
            merged = {**self._facts.get(member, {}), **facts}
            if merged == self._facts.get(member):
                return False
            self._facts[member] = self._changed[member] = merged
            return True

    def clear(self, member: str) -> None:
        """The rank starts anew."""
        with self._lock:
            self._facts.pop(member, None)

    def fetch(self) -> Dict[str, Dict[str, Any]]:
        with self._lock:
            changed, self._changed = self._changed, {}
            return changed
