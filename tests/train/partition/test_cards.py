"""The same on a card: stages on different kinds of device, and NCCL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train.support import run_world

SCRIPT = "from tests.train.partition.drive import *\nmain(sys.argv[1:], cards())"

pytestmark = pytest.mark.real


@pytest.mark.parametrize(("workers", "device"), [(2, "cpu"), (1, "cuda")])
def test_parts_on_a_card_equal_one_process(workers: int, device: str, tmp_path: Path) -> None:
    more = {"CUDA_VISIBLE_DEVICES": "0", "TEST_DEVICE": device}
    run_world(SCRIPT, workers=workers, folder=tmp_path, env=more, timeout=110).check()
