from __future__ import annotations

import pytest

from tests.adapters.hvd.torch import checks
from tests.train.support import run_world

pytestmark = pytest.mark.real


@pytest.mark.parametrize("workers", [2, 3])
def test_every_operation_gives_what_its_definition_says(workers: int) -> None:
    result = run_world(
        "from tests.adapters.hvd.torch import checks; checks.main()", workers=workers, timeout=100
    ).check()
    for rank in range(workers):
        assert len(result.lines(f"worker-{rank}", "ok")) == len(checks.CHECKS)


@pytest.mark.parametrize(("workers", "nodes"), [(2, 2), (3, 2)])
def test_so_it_does_between_machines(workers: int, nodes: int) -> None:
    script = "from tests.adapters.hvd.torch import checks; checks.main(checks.ELSEWHERE)"
    result = run_world(script, workers=workers, nodes=nodes, timeout=100).check()
    for rank in range(workers):
        assert len(result.lines(f"worker-{rank}", "ok")) == len(checks.ELSEWHERE)


ALONE = """
    import torch
    import shoal.adapters.hvd.torch as hvd

    try:
        hvd.rank()
    except ValueError as early:
        print(early)
    hvd.init()
    assert (hvd.rank(), hvd.size(), hvd.local_size()) == (0, 1, 1)
    assert hvd.allreduce(torch.ones(2)).tolist() == [1.0, 1.0]
    assert hvd.allgather(torch.ones(2, 2)).shape == (2, 2)
    assert hvd.alltoall(torch.arange(3)).tolist() == [0, 1, 2]
    assert hvd.broadcast_object({"a": 1}) == {"a": 1} and hvd.join() == 0
    print("alone")
"""


def test_a_script_that_nobody_launched_is_a_world_of_one() -> None:
    result = run_world(ALONE, workers=1).check()
    assert result.lines("worker-0") == ["Horovod has not been initialized; use hvd.init().", "alone"]
