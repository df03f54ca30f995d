"""DeepSpeed: `shoal run --workers 2 --folder examples/16_relatives -- deepspeed with_deepspeed.py --steps 60`, or the script
alone: `shoal run examples/16_relatives/with_deepspeed.py --workers 2`. Needs `pip install deepspeed`.
"""

import argparse

import deepspeed
import torch
from blind import report, rows

CONFIG = {
    "train_micro_batch_size_per_gpu": 64,
    "optimizer": {"type": "SGD", "params": {"lr": 0.5}},
    "zero_optimization": {"stage": 0},
    "steps_per_print": 10**9,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--local_rank", type=int, default=-1, help="set by deepspeed")
    asked = parser.parse_args()
    deepspeed.init_distributed(dist_backend="gloo")
    model = torch.nn.Linear(4, 1, bias=False)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    features, labels = rows(rank)
    for _ in range(asked.steps):
        engine.backward(torch.nn.functional.mse_loss(engine(features), labels))
        engine.step()
    report(rank, size, engine.module)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
