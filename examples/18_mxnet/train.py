"""Lesson 18: an MXNet script with a distributed key-value store; the scheduler and the servers are Shoal's own.

    shoal run examples/18_mxnet/train.py --framework mxnet --strategy ps-sync --workers 2 --servers 1 \
        --environment mxnet-1.9

With `--strategy ps-async -- --kvstore dist_async` nobody waits for the others. Each worker sees half of the features:
only together can they learn all eight weights.
"""

import argparse

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd

FEATURES = 8
TRUE = np.linspace(-2.0, 2.0, FEATURES).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kvstore", default="dist_sync")
    parser.add_argument("--steps", type=int, default=150)
    asked = parser.parse_args()

    store = mx.kv.create(asked.kvstore)
    rank, size = store.rank, store.num_workers
    model = gluon.nn.Dense(1, use_bias=False, in_units=FEATURES)
    model.initialize(mx.init.Zero())
    trainer = gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": 0.2}, kvstore=store)
    error = gluon.loss.L2Loss()
    random = np.random.default_rng(rank)
    blind = [feature for feature in range(FEATURES) if feature % size != rank]
    for step in range(1, asked.steps + 1):
        rows = random.normal(size=(64, FEATURES)).astype(np.float32)
        rows[:, blind] = 0.0
        with autograd.record():
            loss = error(model(nd.array(rows)), nd.array(rows @ TRUE))
        loss.backward()
        trainer.step(64)
        if step % 50 == 0:
            print(f"progress {step}/{asked.steps} loss={loss.mean().asscalar():.6f}", flush=True)
    learned = model.weight.data().asnumpy()[0]
    print(f"rank {rank} of {size}: furthest weight off by {np.abs(learned - TRUE).max():.4f}")


if __name__ == "__main__":
    main()
