"""`horovod.tensorflow` and `horovod.keras` in an interpreter that has TensorFlow and no torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train.support import Running, run_world

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]  # the first time TensorFlow is installed


@pytest.mark.parametrize("checks", ["OPERATIONS", "TRAINING"])
def test_operations_tapes_optimizers_and_callbacks_keep_their_definitions(tensorflow: str, checks: str) -> None:
    script = f"from tests.adapters.hvd.tensorflow import checks; checks.main(checks.{checks})"
    result = run_world(script, workers=2, python=tensorflow, timeout=110).check()
    assert [result.lines(f"worker-{rank}")[-1] for rank in range(2)] == ["all", "all"]


ELASTIC = """
    import os, time
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import numpy as np, keras
    import horovod.tensorflow as hvd

    hvd.init()
    me = int(os.environ["SHOAL_RANK"])
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")

    @hvd.elastic.run
    def train(state):
        while state.epoch < 4:
            if state.epoch == 2 and me == 1:
                print("ready to die", flush=True)
                time.sleep(100)
            model.fit(np.ones((4, 2)) * me, np.ones((4, 1)), epochs=1, verbose=0)
            state.epoch += 1
            state.commit()
            print("committed", state.epoch, hvd.size(), flush=True)

    train(hvd.elastic.TensorFlowKerasState(model, epoch=0))
    print("done", hvd.rank(), hvd.size(), flush=True)
"""


def test_who_is_left_of_an_elastic_fit_goes_on_from_the_last_commit(tensorflow: str) -> None:
    def during(world: Running) -> None:
        world.wait_for("worker-1", "ready to die", timeout=80)
        world.kill("worker-1")

    root = Path(__file__).parents[4]
    env = {"PYTHONPATH": f"{root / 'shoal' / 'adapters' / 'horovod_path'}:{root}"}
    result = run_world(ELASTIC, workers=2, python=tensorflow, during=during, env=env, timeout=110)
    assert result.returncodes["worker-0"] == 0, result.told()
    sizes = [line.split()[1:] for line in result.lines("worker-0", "committed")]
    assert sizes == [["1", "2"], ["2", "2"], ["3", "1"], ["4", "1"]]
    assert result.lines("worker-0", "done") == ["done 0 1"]
