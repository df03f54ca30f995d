"""Workers that are lost in the middle of elastic training."""

from __future__ import annotations

import pytest

from tests.train.support import Running, run_world

pytestmark = pytest.mark.real

ELASTIC = """
    import os, time
    import torch
    import shoal.adapters.hvd.torch as hvd

    hvd.init()
    me = int(os.environ["SHOAL_RANK"])
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01), model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(range(240), shuffle=False)

    @hvd.elastic.run
    def train(state):
        while state.step < 12:
            if state.step == 6 and me == 1 and hvd.size() == 3:
                print("ready to die", flush=True)
                time.sleep(60)
            state.optimizer.zero_grad()
            state.model(torch.full((4, 2), me + 1.0)).sum().backward()
            state.optimizer.step()
            state.sampler.record_batch(state.step, 4)
            state.step += 1
            if state.step % 2 == 0:
                state.commit()
                print("committed", state.step, hvd.rank(), hvd.size(), flush=True)

    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, step=0)
    state.register_reset_callbacks([lambda: print("reset", hvd.rank(), hvd.size(), flush=True)])
    train(state)
    weights = hvd.allgather_object([one.tolist() for one in model.parameters()])
    print("equal", all(one == weights[0] for one in weights), len(weights), sampler.processed_num, flush=True)
"""


def test_those_that_are_left_go_on_from_the_last_commit() -> None:
    def during(world: Running) -> None:
        world.wait_for("worker-1", "ready to die")
        world.kill("worker-1")

    result = run_world(ELASTIC, workers=3, during=during, timeout=100)
    assert (result.returncodes["worker-0"], result.returncodes["worker-2"]) == (0, 0), result.told()
    assert result.lines("worker-0", "reset") == ["reset 0 2"]
    assert result.lines("worker-2", "reset") == ["reset 1 2"]
    assert result.lines("worker-0", "committed")[:4] == [
        *("committed 2 0 3", "committed 4 0 3", "committed 6 0 3", "committed 8 0 2"),
    ]
    # six steps of 3 x 4 samples, then six of 2 x 4
    assert result.lines("worker-2", "equal") == ["equal True 2 120"]


LEAVES = ELASTIC.replace("time.sleep(60)", "raise KeyError('a mistake on one worker')")


def test_one_that_ends_with_an_error_is_gone_on_without_too() -> None:
    result = run_world(LEAVES, workers=3, timeout=100)
    assert result.returncodes == {"worker-0": 0, "worker-1": 1, "worker-2": 0}, result.told()
    assert result.lines("worker-0", "reset") == ["reset 0 2"]
    assert result.lines("worker-2", "equal") == ["equal True 2 120"]


MISTAKE = """
    import torch
    import shoal.adapters.hvd.torch as hvd

    hvd.init()

    @hvd.elastic.run
    def train(state):
        hvd.allreduce(torch.ones(2 + hvd.rank()), name="x")

    train(hvd.elastic.ObjectState(step=0))
"""


def test_a_mistake_of_the_script_is_not_tried_for_ever() -> None:
    result = run_world(MISTAKE, workers=2)
    assert "with shapes [(2,)]" in result.stderr["worker-0"] and result.returncodes["worker-1"] == 1


LOST = """
    import os, time
    import torch
    import shoal.adapters.hvd.torch as hvd

    hvd.init()
    if hvd.rank() == 1:
        print("ready to die", flush=True)
        time.sleep(60)
    hvd.allreduce(torch.ones(2), name="x")
"""


def test_without_elastic_the_error_says_who_is_missing() -> None:
    def during(world: Running) -> None:
        world.wait_for("worker-1", "ready to die")
        world.kill("worker-1")

    result = run_world(LOST, workers=2, during=during)
    assert result.returncodes["worker-0"] == 1
    assert "HorovodInternalError: worker-1 is gone" in result.stderr["worker-0"]


RAISES = """
    import torch
    import shoal.adapters.hvd.torch as hvd

    hvd.init()
    if hvd.rank() == 1:
        raise KeyError("a mistake in the script")
    hvd.allreduce(torch.ones(2), name="x")
"""


def test_a_worker_that_raises_does_not_leave_the_others_waiting() -> None:
    result = run_world(RAISES, workers=2)
    assert "HorovodInternalError: worker-1 has shut Horovod down or ended" in result.stderr["worker-0"]
