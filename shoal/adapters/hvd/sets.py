"""Sets of workers that work together apart from the others, as a script names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class ProcessSet:
    """Some ranks. It has a number, and can be used, once it was given to `init` or `add_process_set`."""

    def __init__(self, ranks: Sequence[int]) -> None:
        if isinstance(ranks, (str, bytes)) or not hasattr(ranks, "__iter__"):
            raise ValueError(f"a process set is a list of ranks, not {ranks!r}; communicators of MPI are not served")
        self.ranks: list[int] = sorted(int(rank) for rank in ranks)
        self.process_set_id: int | None = None

    def included(self) -> bool:
        """Whether this worker is one of them."""
        return _basics().rank() in self.ranks

    def size(self) -> int | None:
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> int | None:
        """This worker's number among them; -1 when it is none of them."""
        if self.process_set_id is None:
            return None
        rank = _basics().rank()
        return self.ranks.index(rank) if rank in self.ranks else -1

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    __str__ = __repr__


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0


def _basics() -> Any:
    from shoal.adapters.hvd import basics  # below us it would be a circle: basics makes the sets real

    return basics
