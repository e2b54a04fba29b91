"""Early stopping, and a `ModelCheckpoint` whose best file is tested at the end."""

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from detcore_torch.for_lightning import fit

EPOCHS = 8


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch, batch_idx):
        return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.02)


L.seed_everything(8)
x = torch.randn(60, 10)
y = x[:, :1] + torch.randn(60, 1)
train, valid = TensorDataset(x[:40], y[:40]), TensorDataset(x[40:], y[40:])
best = ModelCheckpoint("best", monitor="val_loss", save_top_k=1)
stop = EarlyStopping("val_loss", patience=2)
model = Net()
trainer = L.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    logger=False,
    callbacks=[best, stop],
    enable_progress_bar=False,
    enable_model_summary=False,
    log_every_n_steps=5,
)
fit(trainer, model, DataLoader(train, 8, shuffle=True), DataLoader(valid, 20), save_every=2)
best_weights = torch.load(best.best_model_path, weights_only=False)["state_dict"]
print("final", float(best.best_model_score), stop.wait_count, stop.stopped_epoch)
