"""Accumulation that changes with the epoch, clipping, and bfloat16."""

import lightning as L
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from detcore_torch.for_lightning import fit

EPOCHS = 4


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 24), nn.SiLU(), nn.Dropout(0.1), nn.Linear(24, 1))

    def training_step(self, batch, batch_idx):
        loss = nn.functional.smooth_l1_loss(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", nn.functional.mse_loss(self.net(batch[0]).float(), batch[1]))

    def configure_optimizers(self):
        return torch.optim.RAdam(self.parameters(), lr=1e-2)


L.seed_everything(6)
x = torch.randn(96, 6)
data = TensorDataset(x, x.prod(1, keepdim=True))
model = Net()
trainer = L.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    precision="bf16-mixed",
    gradient_clip_val=0.5,
    callbacks=[GradientAccumulationScheduler(scheduling={0: 1, 2: 2})],
    enable_progress_bar=False,
    enable_model_summary=False,
    log_every_n_steps=2,
)
fit(trainer, model, DataLoader(data, 12, shuffle=True), DataLoader(data, 32), save_every=3)
print("final", float(trainer.callback_metrics["val_loss"]))
