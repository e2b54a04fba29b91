"""A regressor with a warm-up schedule per step and two loader workers."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from detcore_torch.for_lightning import fit

EPOCHS = 4


class Regressor(L.LightningModule):
    def __init__(self, width=16):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(
            nn.Linear(5, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 1)
        )

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 10))
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


L.seed_everything(1)
x = torch.randn(96, 5)
data = TensorDataset(x, x.sum(1, keepdim=True))
train_loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=2)
model = Regressor()
trainer = L.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    log_every_n_steps=2,
)
fit(trainer, model, train_loader, DataLoader(data, batch_size=32), save_every=4)
print("final", {name: float(value) for name, value in trainer.callback_metrics.items()})
