"""A small model under DistributedDataParallel; rank 0 says how many steps a second it makes after the warm-up."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

WARM_UP, STEPS = int(sys.argv[1]), int(sys.argv[2])
WIDTH, BATCH = 384, 96


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    layers = [layer for _ in range(3) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    model = DistributedDataParallel(torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(BATCH, WIDTH), torch.randint(0, 10, (BATCH,))
    began = time.perf_counter()
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:
            dist.barrier()
            began = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    dist.barrier()
    if dist.get_rank() == 0:
        print("steps_per_s", STEPS / (time.perf_counter() - began), flush=True)
    dist.destroy_process_group()


main()
# torch 2.13 with gloo aborts in one interpreter exit of twenty ("terminate called without an active exception").
os._exit(0)
