from __future__ import annotations

from typing import Any

import pytest

from shoal.errors import BadSpec, Conflict, NotFound
from shoal.store import Store
from tests.store.making import NOW


def _entry(path: str, size: int = 1) -> dict[str, Any]:
    return {"path": path, "size": size, "mode": 0o644, "mtime": 1.5, "chunks": ["ab" * 32], "link": None}


def _paths(store: Store, prefix: str = "", owner: str = "ann", limit: int = 3) -> list[str]:
    found, cursor = [], None
    while True:
        page = store.files(owner, prefix, limit, cursor)
        found += [entry["path"] for entry in page.items]
        cursor = page.next
        if cursor is None:
            return found


def test_a_manifest_is_its_owners_alone(store: Store) -> None:
    assert store.put_manifest("ann", "d1", '{"entries":[]}') == "d1"
    assert store.put_manifest("ann", "d1", '{"entries":[]}') == "d1"
    assert store.manifest("ann", "d1") == '{"entries":[]}'
    with pytest.raises(NotFound, match="d1"):
        store.manifest("bob", "d1")


def test_files_come_back_as_they_were_put(store: Store) -> None:
    store.put_files("ann", [_entry("a/b.txt", 1)], NOW)
    store.put_files("ann", [_entry("a/b.txt", 2)], NOW)
    store.put_files("ann", [], NOW)
    assert store.files("ann", "", 10, None).items == (_entry("a/b.txt", 2),)
    assert store.files("bob").items == ()


def test_files_are_paged_by_path(store: Store) -> None:
    names = ["Z", "a", "b/a", "b/c", "b0", "zz", "é/ü", "\N{SNOWMAN}"]
    store.put_files("ann", [_entry(name) for name in reversed(names)], NOW)
    assert _paths(store) == sorted(names)


def test_a_prefix_is_whole_parts_of_a_path(store: Store) -> None:
    store.put_files("ann", [_entry(p) for p in ("a/b/c", "a/b/d", "a/bc", "a/b-x", "a/b0", "a%/x", "ab")], NOW)
    assert _paths(store, "a/b") == ["a/b/c", "a/b/d"]
    assert _paths(store, "/a/b/") == ["a/b/c", "a/b/d"]
    assert _paths(store, "a/bc") == ["a/bc"]
    assert _paths(store, "a%") == ["a%/x"]
    assert _paths(store, "nothing") == []


def test_removing_counts_what_was_there(store: Store) -> None:
    store.put_files("ann", [_entry(p) for p in ("a/b", "a/c", "ab")], NOW)
    store.put_files("bob", [_entry("a/b")], NOW)
    assert store.remove_files("ann", "a") == 2
    assert store.remove_files("ann", "a") == 0
    assert _paths(store) == ["ab"]
    assert store.remove_files("ann", "") == 1
    assert _paths(store, owner="bob") == ["a/b"]


def test_a_file_cannot_lie_under_a_file(store: Store) -> None:
    store.put_files("ann", [_entry("a/b"), _entry("x")], NOW)
    for path in ("a/b/c", "a", "x/y/z"):
        with pytest.raises(Conflict, match="remove it first"):
            store.put_files("ann", [_entry("fine"), _entry(path)], NOW)
    with pytest.raises(BadSpec, match="'n'"):
        store.put_files("ann", [_entry("n"), _entry("n/m")], NOW)
    assert _paths(store) == ["a/b", "x"]


def test_a_cursor_of_another_list_is_refused(store: Store) -> None:
    with pytest.raises(BadSpec, match="cursor"):
        store.files("ann", "", 3, "MQ")
