"""The names of the reductions, and which one an old script means by `average`."""

from __future__ import annotations

from shoal.adapters.hvd.ask import ADASUM, AVERAGE, MAX, MIN, PRODUCT, SUM

Average, Sum, Adasum, Min, Max, Product = AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT


def chosen(op: str | None, average: bool | None) -> str:
    """`average` is older than `op`; a script gives one of them or none."""
    if op is not None and average is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if average is not None:
        return AVERAGE if average else SUM
    return op if op is not None else AVERAGE
