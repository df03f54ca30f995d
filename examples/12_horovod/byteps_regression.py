"""An ordinary BytePS script, unchanged: a regression whose best answer is known, on two workers.

    shoal run examples/12_horovod/byteps_regression.py --framework horovod --workers 2

Each worker sees only half of the features; only together do they come to the weights that made the data.
"""

import byteps.torch as bps
import torch

bps.init()
torch.manual_seed(7)
torch.set_num_threads(1)

known = torch.arange(1.0, 9.0)
x = torch.randn(512, 8)
y = x @ known

mine = torch.zeros(8)
mine[bps.rank() :: bps.size()] = 1.0  # the features this worker learns from
weights = torch.nn.Parameter(torch.full((8,), float(bps.rank())))
optimizer = torch.optim.SGD([weights], lr=0.1 * bps.size())

bps.broadcast_parameters([("weights", weights.data)], root_rank=0)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=[("weights", weights)])

for step in range(1, 101):
    optimizer.zero_grad()
    error = x @ weights - y
    loss = (error.detach() * ((x * mine) @ weights)).mean()  # the gradient of half the features
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        print(f"progress {step}/100 distance={(weights - known).abs().max().item():.4f}", flush=True)

distance = bps.push_pull((weights.detach() - known).abs().max(), average=True, name="distance")
print(f"rank {bps.rank()} of {bps.size()}: {distance.item():.4f} from the known weights")
