"""What every worker of a set asked for and is not done yet: the same table on all of them, so all decide alike. Pure.

Workers may ask in any order; an operation is ready when all have asked for it by its name, and ready ones are done in
the order in which the table first heard of them. Who has joined is asked no more: it takes part with zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.adapters.hvd.ask import ALLGATHER, ALLTOALL, BROADCAST, JOIN, Ask, differs

_NOT_WITH_JOIN = (ALLGATHER, BROADCAST, ALLTOALL)


@dataclass(frozen=True)
class Ready:
    """An operation to be done now, by all: who asked what, or why it cannot be done."""

    name: str
    asks: Mapping[int, Ask]  # by place in the set
    wrong: str | None = None
    last: int = -1  # of a join: the place that joined last

    @property
    def ask(self) -> Ask:
        return next(iter(self.asks.values()))


class Table:
    """The asks of a set of so many workers. `places` are their numbers in the set, `ranks` those among all, for
    words."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = list(ranks)
        self._asks: dict[str, dict[int, Ask]] = {}
        self._joined: dict[int, Ask] = {}  # in the order in which they joined

    def add(self, news: Sequence[Sequence[Ask]]) -> list[Ready]:
        """What each worker, in the order of places, asks for since the last time. Returns what is ready now."""
        for place, asks in enumerate(news):
            for ask in asks:
                if ask.kind == JOIN:
                    self._joined[place] = ask
                else:
                    self._asks.setdefault(ask.name, {})[place] = ask
        return [*self._complete(), *self._all_joined()]

    def missing(self, name: str) -> list[str]:
        """Who has not asked for it yet; all but the joined when nobody has."""
        asked = self._asks.get(name, {})
        return [f"worker-{self.ranks[place]}" for place in self._awaited() if place not in asked]

    def _complete(self) -> list[Ready]:
        awaited = set(self._awaited())
        names = [name for name, asks in self._asks.items() if awaited <= asks.keys()]
        return [self._ready(name, self._asks.pop(name)) for name in names]

    def _ready(self, name: str, asks: dict[int, Ask]) -> Ready:
        by_rank = {self.ranks[place]: asks[place] for place in sorted(asks)}
        wrong = differs(by_rank, len(self.ranks)) or self._without_some(asks) or self._without_root(asks)
        return Ready(name, asks, wrong)

    def _without_some(self, asks: Mapping[int, Ask]) -> str | None:
        kind = next(iter(asks.values())).kind
        if self._joined and kind in _NOT_WITH_JOIN:
            return f"{kind} is not possible after {self._names(self._joined)} joined; only allreduce and barrier are"
        return None

    def _without_root(self, asks: Mapping[int, Ask]) -> str | None:
        ask = next(iter(asks.values()))
        if ask.kind == BROADCAST and ask.root not in self.ranks:
            return f"broadcast {ask.name!r} has root rank {ask.root}, which is none of {self.ranks}; name one of them"
        return None

    def _all_joined(self) -> list[Ready]:
        if len(self._joined) < len(self.ranks):
            return []
        asks, self._joined = self._joined, {}
        return [Ready(JOIN, asks, last=list(asks)[-1])]

    def _awaited(self) -> list[int]:
        return [place for place in range(len(self.ranks)) if place not in self._joined]

    def _names(self, places: Mapping[int, Ask]) -> str:
        return ", ".join(f"worker-{self.ranks[place]}" for place in sorted(places))
