"""Stochastic weight averaging in the second half of training, with batch norm."""

import lightning as L
import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from detcore_torch.for_lightning import fit

EPOCHS = 6


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.8)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)]


L.seed_everything(4)
x = torch.randn(80, 4)
data = TensorDataset(x, (x[:, 0] > x[:, 1]).long())
model = Classifier()
trainer = L.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    callbacks=[StochasticWeightAveraging(swa_lrs=0.02, swa_epoch_start=0.5, annealing_epochs=2)],
    enable_progress_bar=False,
    enable_model_summary=False,
    log_every_n_steps=3,
)
fit(trainer, model, DataLoader(data, 16, shuffle=True), DataLoader(data, 32), save_every=3)
print("final", float(trainer.callback_metrics["val_loss"]))
