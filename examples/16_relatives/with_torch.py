"""A script for torchrun: `shoal run --workers 2 --folder examples/16_relatives -- torchrun --nproc_per_node=1 with_torch.py`.

Every worker is to torchrun what a node is, and is told the others. Without torchrun it is the same:
`shoal run examples/16_relatives/with_torch.py --workers 2`.
"""

import torch
import torch.distributed as dist
from blind import report, rows
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    features, labels = rows(rank)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(features), labels).backward()
        optimizer.step()
    report(rank, size, model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
