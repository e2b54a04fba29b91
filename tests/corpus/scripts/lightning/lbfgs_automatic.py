"""LBFGS with automatic optimization."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from detcore_torch.for_lightning import fit

EPOCHS = 4


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def training_step(self, batch, batch_idx):
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), lr=0.3, max_iter=4, history_size=5)


L.seed_everything(10)
x = torch.randn(64, 3)
data = TensorDataset(x, torch.sin(x.sum(1, keepdim=True)))
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
fit(trainer, model, DataLoader(data, 16, shuffle=True), DataLoader(data, 32), save_every=3)
print("final", float(trainer.callback_metrics["val_loss"]))
