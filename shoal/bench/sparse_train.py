"""How fast a parameter server moves the rows of a sparse table."""

from __future__ import annotations

from shoal.bench.figure import Figure, Target
from shoal.bench.peer import run_script


def sparse() -> list[Figure]:
    said = run_script("shoal.bench.train.ps_sparse")
    note = f"each row pulled and pushed; {said['rows']} rows by the end"
    return [Figure("ps.sparse", said["rows_per_s"], Target("≥", 200_000, "rows/s"), None, note)]
