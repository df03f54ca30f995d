"""A job file's text to plain data: YAML without its traps (tabs, duplicate keys, huge scalars, objects)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from shoal.errors import BadSpec

MOST_BYTES = 1 << 20


class _Loader(yaml.SafeLoader):
    """Refuses what YAML would silently bend."""


def _map(loader: _Loader, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
    seen: dict[Hashable, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable):
            raise BadSpec(f"line {key_node.start_mark.line + 1}: a key must be a word")
        if key in seen:
            raise BadSpec(f"line {key_node.start_mark.line + 1}: the key {key!r} stands there twice; remove one")
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _map)


def read_yaml(text: str) -> Any:
    """Plain data of a job file; BadSpec with line and column otherwise."""
    if len(text) > MOST_BYTES:
        raise BadSpec(
            f"the job file has {len(text)} characters, at most {MOST_BYTES}: put data into inputs, not into the file"
        )
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as wrong:
        raise BadSpec(_explain(wrong, text)) from None


def _explain(wrong: yaml.YAMLError, text: str) -> str:
    mark = getattr(wrong, "problem_mark", None)
    if mark is None:
        return f"the job file is not YAML: {wrong}"
    where = f"line {mark.line + 1}, column {mark.column + 1}"
    lines = text.splitlines()
    if mark.line < len(lines) and "\t" in lines[mark.line]:
        return f"{where}: a tab; YAML is indented with spaces only"
    return f"{where}: {getattr(wrong, 'problem', wrong)}; the job file must be YAML"
