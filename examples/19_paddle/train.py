"""Lesson 19: a Paddle script on two workers, unchanged: DataParallel finds the others by PADDLE_* variables.

    shoal run examples/19_paddle/train.py --framework paddle --workers 2 --environment paddle-3.3

With `-- --fleet` the same through Fleet. Each worker sees half of the features: only together can they learn all eight.
"""

import argparse

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.distributed import fleet

FEATURES = 8
TRUE = np.linspace(-2.0, 2.0, FEATURES, dtype=np.float32)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fleet", action="store_true")
    parser.add_argument("--steps", type=int, default=150)
    asked = parser.parse_args()

    model = paddle.nn.Linear(FEATURES, 1, bias_attr=False)
    optimizer = paddle.optimizer.SGD(0.3, parameters=model.parameters())
    if asked.fleet:
        fleet.init(is_collective=True)
        model = fleet.distributed_model(model)
        optimizer = fleet.distributed_optimizer(optimizer)
    else:
        dist.init_parallel_env()
        model = paddle.DataParallel(model)
    rank, size = dist.get_rank(), dist.get_world_size()
    random = np.random.default_rng(rank)
    blind = [feature for feature in range(FEATURES) if feature % size != rank]
    for step in range(1, asked.steps + 1):
        rows = random.normal(size=(64, FEATURES)).astype(np.float32)
        rows[:, blind] = 0.0
        loss = paddle.nn.functional.mse_loss(model(paddle.to_tensor(rows)), paddle.to_tensor((rows @ TRUE)[:, None]))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        if step % 50 == 0:
            print(f"progress {step}/{asked.steps} loss={float(loss):.6f}", flush=True)
    learned = model.state_dict()["weight"].numpy()[:, 0]
    print(f"rank {rank} of {size}: furthest weight off by {np.abs(learned - TRUE).max():.4f}")
    print("weights " + " ".join(f"{weight:.6f}" for weight in learned))


if __name__ == "__main__":
    main()
