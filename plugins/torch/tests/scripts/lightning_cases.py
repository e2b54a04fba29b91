"""Train a small network as the documentation of Lightning shows one of its features."""

import lightning
import torch
from _shared import options
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from detcore_torch.for_lightning import fit

args = options()


class Network(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.backbone = torch.nn.Sequential(
            torch.nn.Linear(4, 37), torch.nn.BatchNorm1d(37), torch.nn.Tanh()
        )
        self.head = torch.nn.Linear(37, 1)

    def forward(self, x):
        return self.head(self.backbone(x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return functional.mse_loss(self(x), y)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", functional.mse_loss(self(x), y))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 0.01)


class LBFGSNetwork(Network):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.parameters(), 0.1, max_iter=4, history_size=5)


networks = {"lbfgs": LBFGSNetwork}
callbacks = {}

lightning.seed_everything(1)
model = networks.get(args.case, Network)()
x = torch.randn(60, 4)
y = x.sum(1, keepdim=True)
train_loader = DataLoader(TensorDataset(x[:40], y[:40]), 8, shuffle=True)
val_loader = DataLoader(TensorDataset(x[40:], y[40:]), 10)
trainer = lightning.Trainer(
    max_epochs=args.epochs,
    accelerator="cpu",
    logger=False,
    callbacks=[make() for make in callbacks.get(args.case, [])],
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    log_every_n_steps=5,
)
if args.alone:
    from detcore_torch import resumable

    trainer.fit(model, resumable(train_loader), val_loader)
else:
    fit(trainer, model, train_loader, val_loader, save_every=2)
trained = {"model": model, "optimizer": trainer.optimizers[0]}
trained |= {f"scheduler {i}": c.scheduler for i, c in enumerate(trainer.lr_scheduler_configs)}
