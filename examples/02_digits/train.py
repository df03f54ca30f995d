"""Handwritten digits on any number of workers: a plain torch.distributed script, nothing of Shoal in it.

    shoal run examples/02_digits/train.py --workers 2
    shoal run examples/02_digits/train.py --workers 2 -- --epochs 40

Run alone (`python train.py`) it is the same training in one process. The lines that begin with `progress` are what
Shoal draws its progress bar from; any program can print them.
"""

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch", type=int, default=32, help="samples per worker and step")
options = parser.parse_args()

distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
if distributed:
    dist.init_process_group("gloo")
rank = dist.get_rank() if distributed else 0
size = dist.get_world_size() if distributed else 1
torch.manual_seed(0)

digits = load_digits()
order = torch.randperm(len(digits.target))
images = torch.tensor(digits.images, dtype=torch.float32)[order].unsqueeze(1) / 16
labels = torch.tensor(digits.target)[order]
split = len(labels) * 4 // 5
training = TensorDataset(images[:split], labels[:split])
sampler = DistributedSampler(training, size, rank, seed=1)
loader = DataLoader(training, options.batch, sampler=sampler)

model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 16, 3, padding=1),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Flatten(),
    torch.nn.Linear(256, 64),
    torch.nn.ReLU(),
    torch.nn.Linear(64, 10),
)
replica = DistributedDataParallel(model) if distributed else model
optimizer = torch.optim.Adam(replica.parameters(), lr=2e-3)

for epoch in range(options.epochs):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(replica(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        accuracy = (model(images[split:]).argmax(1) == labels[split:]).float().mean().item()
    print(f"progress {epoch + 1}/{options.epochs} loss={loss.item():.4f} accuracy={accuracy:.4f}", flush=True)

if rank == 0:
    Path("outputs").mkdir(exist_ok=True)
    torch.save(model.state_dict(), "outputs/model.pt")
    Path("outputs/metrics.json").write_text(json.dumps({"accuracy": accuracy, "epochs": options.epochs}))
if distributed:
    dist.destroy_process_group()
