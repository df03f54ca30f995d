"""Lightning, as it is: `shoal run examples/16_relatives/with_lightning.py --workers 2`. Needs `pip install lightning`."""

import lightning
import torch
from blind import report, rows
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 1, bias=False)

    def training_step(self, batch, _number):
        features, labels = batch
        return torch.nn.functional.mse_loss(self.linear(features), labels)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)

    def train_dataloader(self):
        return DataLoader(TensorDataset(*rows(self.trainer.global_rank)), batch_size=64)


def main() -> None:
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=60,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Regression()
    trainer.fit(model)
    report(trainer.global_rank, trainer.world_size, model)


if __name__ == "__main__":
    main()
