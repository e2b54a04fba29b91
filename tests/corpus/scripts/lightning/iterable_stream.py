"""A shuffled stream without length as training data."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from detcore_torch.for_lightning import fit

EPOCHS = 3


class Stream(IterableDataset):
    def __iter__(self):
        for index in torch.randperm(64).tolist():
            yield torch.full((3,), index / 64), torch.tensor([index / 32])


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 1)

    def training_step(self, batch, batch_idx):
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


L.seed_everything(14)
model = Net()
trainer = L.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    log_every_n_steps=2,
)
fit(trainer, model, DataLoader(Stream(), 8), DataLoader(Stream(), 32), save_every=3)
print("final", float(trainer.callback_metrics["val_loss"]))
