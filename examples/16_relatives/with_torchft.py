"""torchft: replicas that come and go, and heal each other. `shoal run examples/16_relatives/torchft.yaml`. Needs
`pip install torchft`.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
from blind import report, rows
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

STEPS = 60


def main() -> None:
    group, groups = int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["NUM_REPLICA_GROUPS"])
    model = torch.nn.Linear(4, 1, bias=False)
    inner = torch.optim.SGD(model.parameters(), lr=0.5)

    def load(state):
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=20)),
        min_replica_size=groups,
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
        replica_id=f"group-{group}-",
        timeout=timedelta(seconds=20),
    )
    wrapped, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, inner)
    features, labels = rows(group)
    while manager.current_step() < STEPS:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(wrapped(features), labels).backward()
        optimizer.step()
        fall_once(group, manager.current_step())
    report(group, groups, model)
    manager.shutdown()


def fall_once(group: int, step: int) -> None:
    """The second replica is lost half way, as a machine may be; it comes back and is healed by the first."""
    mark = Path("fell")
    if group == 1 and step == STEPS // 2 and not mark.exists():
        mark.touch()
        print(f"group {group} is lost at step {step}", flush=True)
        os._exit(17)


if __name__ == "__main__":
    sys.exit(main())
