"""Models cut over real processes train as one process does: every partition and combination, some exactly."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train.support import run_world

SCRIPT = "from tests.train.partition.drive import *\nmain(sys.argv[1:], {2: two, 3: three, 4: four}[WORLD.size]())"


@pytest.mark.real
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_parts_put_together_equal_one_process(workers: int, tmp_path: Path) -> None:
    run_world(SCRIPT, workers=workers, folder=tmp_path, timeout=110).check()
