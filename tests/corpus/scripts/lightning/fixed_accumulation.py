"""Gradients of two batches are summed, clipped by value, in bfloat16."""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from detcore_torch.for_lightning import fit

EPOCHS = 4


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 24), nn.SiLU(), nn.Dropout(0.1), nn.Linear(24, 1))
        self.losses = []

    def training_step(self, batch, batch_idx):
        loss = nn.functional.smooth_l1_loss(self.net(batch[0]), batch[1])
        self.losses.append(loss.detach())
        return loss

    def on_train_epoch_end(self):
        self.log("epoch_loss", torch.stack(self.losses).mean())
        self.losses.clear()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", nn.functional.mse_loss(self.net(batch[0]).float(), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.RAdam(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.CyclicLR(optimizer, 1e-3, 1e-2, 4, cycle_momentum=False)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


L.seed_everything(7)
x = torch.randn(108, 6)
data = TensorDataset(x, x.prod(1, keepdim=True))
model = Net()
trainer = L.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    precision="bf16-mixed",
    gradient_clip_val=0.2,
    gradient_clip_algorithm="value",
    accumulate_grad_batches=2,
    enable_progress_bar=False,
    enable_model_summary=False,
    log_every_n_steps=2,
)
fit(trainer, model, DataLoader(data, 12, shuffle=True), DataLoader(data, 32), save_every=3)
metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
print("final", metrics)
