"""Values of metrics: how those of several workers become one, and when to stop waiting for a better one. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

_ROOTS = ("rmse", "root_mean_squared_error", "rmsle")  # means of squares under a root
_HIGHER = ("auc", "aucpr", "pre", "map", "ndcg", "average_precision", "r2")  # the greater the better


@dataclass(frozen=True)
class Score:
    """One metric on one set of rows (`train`, `valid`); `rows` is how many of them this worker has."""

    rows_of: str
    metric: str
    value: float
    higher: bool
    rows: float = 1.0

    @property
    def name(self) -> str:
        return f"{self.rows_of}-{self.metric}"


def is_higher_better(metric: str) -> bool:
    """As XGBoost's own early stopping sees it: `map` and `map@5`, but not `mape`."""
    plain = metric.partition("@")[0].rstrip("-")
    return plain in _HIGHER


def combine(told: Sequence[Iterable[Score]]) -> list[Score]:
    """One score for each name, over all workers' rows: exact for means and for roots of means; for the others, such as
    auc, the mean of the workers' values by their rows, as XGBoost does it too."""
    known: dict[str, list[Score]] = {}
    for one in told:
        for score in one:
            known.setdefault(score.name, []).append(score)
    return [replace(scores[0], value=_mean(scores), rows=sum(s.rows for s in scores)) for scores in known.values()]


def _mean(scores: Sequence[Score]) -> float:
    rows = sum(score.rows for score in scores)
    if scores[0].metric in _ROOTS:
        return math.sqrt(sum(score.rows * score.value**2 for score in scores) / rows)
    return sum(score.rows * score.value for score in scores) / rows


@dataclass(frozen=True)
class Patience:
    """The best value so far. `rounds` without a better one are too many; 0 waits for ever."""

    rounds: int
    best: float | None = None
    at: int = 0  # rounds that were done then

    def see(self, value: float, higher: bool, done: int) -> Patience:
        """NaN is never better."""
        better = self.best is None or (value > self.best if higher else value < self.best)
        return replace(self, best=value, at=done) if better and not math.isnan(value) else self

    def over(self, done: int) -> bool:
        return self.rounds > 0 and self.best is not None and done - self.at >= self.rounds
