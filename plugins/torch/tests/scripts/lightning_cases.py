"""Train a small network with a feature as in Lightning's documentation."""

from pathlib import Path

import lightning
import torch
from _shared import options
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    Callback,
    EarlyStopping,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    LambdaCallback,
    ModelCheckpoint,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanAbsoluteError

from detcore_torch import resumable
from detcore_torch.for_lightning import fit

args = options()


class Network(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        norm = [torch.nn.BatchNorm1d(37)] if args.case in ("swa-norm", "finetune") else []
        self.backbone = torch.nn.Sequential(torch.nn.Linear(4, 37), *norm, torch.nn.Tanh())
        self.head = torch.nn.Linear(37, 1)
        self.train_error = MeanAbsoluteError()
        self.errors = []

    def forward(self, x):
        return self.head(self.backbone(x))

    def training_step(self, batch, batch_idx):
        if args.case == "exception" and self.global_rank == 1 and batch_idx == 2:
            raise ValueError("a bad record")
        x, y = batch
        loss = functional.mse_loss(self(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        self.train_error(self(x), y)
        self.log("train_error", self.train_error, on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_end(self):
        metrics = self.trainer.callback_metrics
        self.errors.append((metrics["train_loss"].item(), metrics["train_error"].item()))

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", functional.mse_loss(self(x), y))

    def configure_optimizers(self):
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        if args.case == "lbfgs":
            return torch.optim.LBFGS(trained, 0.1, max_iter=4, history_size=5)
        optimizer = torch.optim.AdamW(trained, 0.1 if args.case.startswith("plateau") else 0.01)
        if args.case.startswith("plateau"):
            monitor = "train_error" if args.case == "plateau-train" else "val_loss"
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
                optimizer, factor=0.5, patience=0, threshold=0.4
            )
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": plateau, "monitor": monitor},
            }
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)]


class CyclicRate(Callback):
    """Stores its progress and an average in plain attributes, as many tutorials do."""

    def __init__(self):
        self.batches = 0
        self.history = []
        self.average = None

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.batches += 1
        rate = 0.01 * (1 + self.batches % 5)
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = rate

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        weight = pl_module.head.weight.detach().clone()
        self.average = weight if self.average is None else 0.9 * self.average + 0.1 * weight

    def on_validation_end(self, trainer, pl_module):
        self.history.append(trainer.global_step)

    def on_train_end(self, trainer, pl_module):
        with torch.no_grad():
            pl_module.head.weight.copy_(self.average + sum(self.history))


class FilteredNetwork(Network):
    """Omits constant weights from checkpoints, and renames the other weights."""

    def on_save_checkpoint(self, checkpoint):
        state = checkpoint["state_dict"]
        checkpoint["state_dict"] = {f"kept.{n}": v for n, v in state.items() if n[0] == "h"}

    def on_load_checkpoint(self, checkpoint):
        renamed = [name for name in checkpoint["state_dict"] if name.startswith("kept.")]
        assert renamed
        for name in renamed:
            value = checkpoint["state_dict"].pop(name)
            assert torch.equal(value, checkpoint["state_dict"][name.removeprefix("kept.")])

    def on_train_start(self):
        if args.case == "filtered":  # as some scripts initialize their weights
            torch.nn.init.constant_(self.head.bias, 0.5)


networks = {"filtered": FilteredNetwork}
callbacks = {
    "attributes": [CyclicRate],
    "average": [lambda: EMAWeightAveraging(decay=0.9)],
    "best": [lambda: ModelCheckpoint("best", monitor="val_loss", save_last=True, save_top_k=2)],
    "best-early": [lambda: ModelCheckpoint("best", every_n_train_steps=1, save_last=True)],
    "best-every-2": [lambda: ModelCheckpoint("best", monitor="val_loss", save_top_k=-1)],
    "best-logged": [lambda: ModelCheckpoint(monitor="val_loss", save_top_k=2)],
    "exception": [lambda: OnExceptionCheckpoint("checkpoints")],
    "accumulate": [lambda: GradientAccumulationScheduler({0: 1, 1: 2})],
    "finetune": [lambda: BackboneFinetuning(2, lambda epoch: 1.5, 0.01)],
    "stop": [lambda: EarlyStopping("val_loss", patience=1, min_delta=0.9)],
    "stop-late": [lambda: EarlyStopping("val_loss", patience=1, min_delta=0.9)],
    "swa": [lambda: StochasticWeightAveraging(0.05, swa_epoch_start=2, annealing_epochs=3)],
    "swa-norm": [lambda: StochasticWeightAveraging(0.05, swa_epoch_start=2)],
}

lightning.seed_everything(1)
model = networks.get(args.case, Network)()
x = torch.randn(60, 4)
y = x.sum(1, keepdim=True)
train_loader = DataLoader(TensorDataset(x[:40], y[:40]), 8, shuffle=True)
val_loader = DataLoader(TensorDataset(x[40:], y[40:]), 10)
trainer = lightning.Trainer(
    max_epochs=args.epochs,
    min_epochs=args.epochs if args.case == "stop-late" else None,
    accelerator="cpu",
    devices=args.ranks,
    logger=CSVLogger(".") if args.case == "best-logged" else False,
    check_val_every_n_epoch=2 if args.case == "best-every-2" else 1,
    callbacks=[make() for make in callbacks.get(args.case, [])],
    enable_checkpointing=args.case.startswith(("best", "exception")),
    enable_progress_bar=False,
    enable_model_summary=False,
    log_every_n_steps=5,
)
if args.alone:
    loader = resumable(train_loader)  # the same batches
    choice = LambdaCallback(on_train_epoch_start=lambda t, _: loader.set_epoch(t.current_epoch))
    trainer.callbacks.insert(0, choice)
    trainer.fit(model, loader, val_loader)
else:
    fit(trainer, model, train_loader, val_loader, save_every=2)
Path("errors.txt").write_text(repr(model.errors))
trained = {"model": model, "optimizer": trainer.optimizers[0]}
trained |= {f"scheduler {i}": c.scheduler for i, c in enumerate(trainer.lr_scheduler_configs)}
