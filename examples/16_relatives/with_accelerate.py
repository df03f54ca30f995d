"""Accelerate: `shoal run --workers 2 --folder examples/16_relatives -- accelerate launch --cpu with_accelerate.py`, or the
script alone: `shoal run examples/16_relatives/with_accelerate.py --workers 2`. Needs `pip install accelerate`.
"""

import torch
from accelerate import Accelerator
from blind import report, rows


def main() -> None:
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(4, 1, bias=False)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    features, labels = rows(accelerator.process_index)
    for _ in range(60):
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(features), labels))
        optimizer.step()
    report(accelerator.process_index, accelerator.num_processes, model)
    accelerator.end_training()


if __name__ == "__main__":
    main()
