"""A callback averages the weights, and swaps them in for validation."""

import copy

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from detcore_torch.for_lightning import fit

EPOCHS = 4


class EMA(L.Callback):
    def __init__(self, decay=0.9):
        self.decay = decay
        self.shadow = None
        self.backup = None
        self.num_updates = 0

    def on_train_start(self, trainer, pl_module):
        if self.shadow is None:
            self.shadow = copy.deepcopy(pl_module.state_dict())

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.num_updates += 1
        decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
        with torch.no_grad():
            for name, value in pl_module.state_dict().items():
                if value.is_floating_point():
                    self.shadow[name].mul_(decay).add_(value, alpha=1 - decay)

    def on_validation_start(self, trainer, pl_module):
        if self.shadow is not None:
            self.backup = copy.deepcopy(pl_module.state_dict())
            pl_module.load_state_dict(self.shadow)

    def on_validation_end(self, trainer, pl_module):
        if self.backup is not None:
            pl_module.load_state_dict(self.backup)
            self.backup = None


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


L.seed_everything(3)
x = torch.randn(96, 6)
data = TensorDataset(x, x[:, :3].argmax(1))
ema = EMA()
model = Classifier()
trainer = L.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    callbacks=[ema],
    enable_progress_bar=False,
    enable_model_summary=False,
    log_every_n_steps=3,
)
fit(trainer, model, DataLoader(data, 16, shuffle=True), DataLoader(data, 32), save_every=4)
shadow = ema.shadow
print("final", float(trainer.callback_metrics["val_loss"]), ema.num_updates)
