"""An ordinary Horovod script, unchanged: handwritten digits on two workers.

    shoal run examples/12_horovod/train.py --framework horovod --workers 2

`import horovod.torch` finds the Horovod of the interpreter; where none is installed, Shoal's own stands in for it.
"""

import argparse

import horovod.torch as hvd
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--fp16-allreduce", action="store_true")
parser.add_argument("--use-adasum", action="store_true")
args = parser.parse_args()

hvd.init()
torch.manual_seed(42 + hvd.rank())  # different beginnings on purpose: the broadcast makes them one
torch.set_num_threads(1)

digits = load_digits()
images = torch.tensor(digits.data / 16.0, dtype=torch.float32)
labels = torch.tensor(digits.target)
train_set, test_set = TensorDataset(images[:1500], labels[:1500]), TensorDataset(images[1500:], labels[1500:])
sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
scale = 1 if args.use_adasum else hvd.size()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * scale, momentum=0.9)

hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
    op=hvd.Adasum if args.use_adasum else hvd.Average,
)

for epoch in range(1, args.epochs + 1):
    model.train()
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        part = range(hvd.rank(), len(test_set), hvd.size())  # each worker tests its share
        right = (model(test_set.tensors[0][part]).argmax(1) == test_set.tensors[1][part]).float().mean()
    accuracy = hvd.allreduce(right, name="accuracy").item()
    print(f"progress {epoch}/{args.epochs} loss={loss.item():.3f} accuracy={accuracy:.3f}", flush=True)

flat = np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])
sums = hvd.allgather_object(float(np.abs(flat).sum()))
print(f"rank {hvd.rank()} of {hvd.size()}: all replicas equal: {len(set(sums)) == 1}")
