"""Raise an exception on one of two ranks, under a callback that saves on exceptions."""

import lightning
import torch
from lightning.pytorch.callbacks import OnExceptionCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from detcore_torch.for_lightning import fit


class Network(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, batch_idx):
        if self.global_rank == 1 and batch_idx == 2:
            raise ValueError("a bad record")
        return self.layer(batch[0]).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.layer(batch[0]).square().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


data = TensorDataset(torch.randn(64, 4))
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    logger=False,
    callbacks=[OnExceptionCheckpoint("checkpoints")],
    enable_progress_bar=False,
)
fit(trainer, Network(), DataLoader(data, 4), DataLoader(data, 4))
