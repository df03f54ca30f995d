"""Handwritten digits under any strategy: five lines of this script are Shoal's, and none of them names the strategy.

    python examples/10_strategies/train.py                                           one process, the plain script
    shoal run examples/10_strategies/train.py --workers 2 --strategy allreduce
    shoal run examples/10_strategies/train.py --workers 2 --servers 2 --strategy ps-ssp:staleness=3
    shoal run examples/10_strategies/train.py --workers 4 --strategy local-sgd:every=16,outer=nesterov
    shoal plan examples/10_strategies/train.py --workers 2 --suggest
    shoal compare examples/10_strategies/train.py --workers 2

A parameter server is Shoal's own process, so there is no branch for it here.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from shoal import train

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch", type=int, default=32, help="samples per worker and step")
options = parser.parse_args()

torch.manual_seed(0)
digits = load_digits()
order = torch.randperm(len(digits.target))
images = torch.tensor(digits.images, dtype=torch.float32)[order].unsqueeze(1) / 16
labels = torch.tensor(digits.target)[order]
split = len(labels) * 4 // 5
loader = DataLoader(TensorDataset(images[:split], labels[:split]), options.batch, shuffle=True)

model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 16, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Flatten(),
    torch.nn.Linear(256, 64),
    torch.nn.ReLU(),
    torch.nn.Linear(64, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


@torch.no_grad()
def accuracy():
    return (model(images[split:]).argmax(1) == labels[split:]).float().mean().item()


with train.start() as run:
    model, optimizer = run.wrap(model, optimizer)
    for epoch in run.epochs(options.epochs):
        for x, y in run.shard(loader):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.report(loss=loss)
        run.report(accuracy=accuracy())
        run.save(epoch)
    print(f"rank {run.rank} of {run.size} under {run.strategy}: accuracy {accuracy():.3f}", flush=True)
