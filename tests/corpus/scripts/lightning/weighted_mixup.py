"""A weighted sampler, and mixup with NumPy's global generator in `training_step`."""

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from detcore_torch.for_lightning import fit

EPOCHS = 4


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        self.mixing = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        weight = np.random.beta(0.4, 0.4)
        self.mixing.append(weight)
        permutation = torch.randperm(len(x))
        logits = self.net(weight * x + (1 - weight) * x[permutation])
        loss = nn.functional.cross_entropy
        value = weight * loss(logits, y) + (1 - weight) * loss(logits, y[permutation])
        self.log("train_loss", value)
        return value

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


L.seed_everything(13)
y = (torch.rand(96) < 0.15).long()
x = torch.randn(96, 4) + y[:, None]
data = TensorDataset(x, y)
sampler = WeightedRandomSampler(torch.where(y == 1, 5.0, 1.0), 96)
model = Net()
trainer = L.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    log_every_n_steps=3,
)
fit(trainer, model, DataLoader(data, 16, sampler=sampler), DataLoader(data, 48), save_every=4)
print("final", float(trainer.callback_metrics["val_loss"]), sum(model.mixing))
