from __future__ import annotations

import pytest

from tests.adapters.hvd.torch import training
from tests.train.support import run_world

pytestmark = pytest.mark.real


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_with_different_data_train_one_model(workers: int) -> None:
    result = run_world(
        "from tests.adapters.hvd.torch import training; training.main()", workers=workers, timeout=100
    ).check()
    for rank in range(workers):
        assert len(result.lines(f"worker-{rank}", "ok")) == len(training.CHECKS)
