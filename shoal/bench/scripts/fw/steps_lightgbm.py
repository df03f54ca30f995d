"""One small training step of lightgbm on two workers, as often as its turn says."""

import os

import lightgbm as lgb
import numpy as np
from turns import take_turns

if os.environ["BENCH_SIDE"] == "ours":
    import shoal.lightgbm

    network = shoal.lightgbm.params()
else:
    machines, port = os.environ["BENCH_MACHINES"], int(os.environ["BENCH_PORT"])
    network = {"machines": machines, "local_listen_port": port, "num_machines": 2, "tree_learner": "data"}
ports = [int(one.rpartition(":")[2]) for one in str(network["machines"]).split(",")]
rank = ports.index(int(network["local_listen_port"]))
random = np.random.default_rng(rank)
x = random.normal(size=(20_000, 20))
settings = {"objective": "regression", "num_threads": 1, "verbosity": -1, "pre_partition": True, **network}
booster = lgb.Booster(settings, lgb.Dataset(x, x[:, 0] - x[:, 1]))
take_turns(booster.update, rank)
