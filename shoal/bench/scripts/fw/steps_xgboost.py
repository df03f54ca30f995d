"""One small training step of xgboost on two workers, as often as its turn says."""

import os

import numpy as np
import xgboost as xgb
from turns import take_turns

tracker = {
    "dmlc_tracker_uri": os.environ["DMLC_TRACKER_URI"],
    "dmlc_tracker_port": int(os.environ["DMLC_TRACKER_PORT"]),
    "dmlc_task_id": os.environ["DMLC_TASK_ID"],
}

with xgb.collective.CommunicatorContext(**tracker):
    rank = xgb.collective.get_rank()
    random = np.random.default_rng(rank)
    x = random.normal(size=(20_000, 20))
    data = xgb.QuantileDMatrix(x, x[:, 0] - x[:, 1])
    booster = xgb.train({"max_depth": 4, "nthread": 1}, data, 1)
    rounds = iter(range(1, 1_000_000))

    def step() -> None:
        booster.update(data, next(rounds))

    take_turns(step, rank)
