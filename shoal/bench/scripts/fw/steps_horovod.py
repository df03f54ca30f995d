"""One small training step of horovod on two workers, as often as its turn says."""

import horovod.torch as hvd
import torch
from turns import take_turns

hvd.init()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
x, y = torch.randn(64, 256), torch.randn(64, 1)


def step() -> None:
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


take_turns(step, hvd.rank())
hvd.shutdown()
