"""One small training step of pytorch on two workers, as often as its turn says."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from turns import take_turns

torch.manual_seed(0)
dist.init_process_group("gloo")
layers = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
model = DistributedDataParallel(layers)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
x, y = torch.randn(64, 256), torch.randn(64, 1)


def step() -> None:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


take_turns(step, dist.get_rank())
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # gloo sometimes aborts while the interpreter ends
