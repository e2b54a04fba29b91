"""Train with Lightning; see `resumed_task`."""

import lightning
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping
from lightning.pytorch.plugins import MixedPrecision
from resumed_task import (
    Network,
    Progress,
    args,
    change_weights,
    make_optimizer,
    make_scaler,
    make_scheduler,
    plant_faults,
    records,
)
from torch.utils.data import DataLoader

from detcore_torch import resumable
from detcore_torch.for_lightning import fit


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = Network()
        self.num_losses = 0

    def on_train_batch_start(self, batch, batch_idx):
        if self.global_step == 30:
            change_weights(self.network)

    def training_step(self, batch, batch_idx):
        loss = self.network(**batch)["loss"]
        self.num_losses += 1
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.network(**batch)["loss"])

    def configure_optimizers(self):
        optimizer = make_optimizer(self.network)
        schedule = {"scheduler": make_scheduler(optimizer), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


class Averaging(Progress, Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.update(pl_module.network)


Averaging.__name__ = "Progress"  # as in the other scripts
lightning.seed_everything(1)
model, progress = Module(), Averaging()
stopping = EarlyStopping("val_loss", patience=50)
trainer = lightning.Trainer(
    max_steps=60,
    val_check_interval=30,
    log_every_n_steps=5,
    accelerator="cpu",
    callbacks=[progress, stopping],
    plugins=[MixedPrecision("16-mixed", "cpu", make_scaler())],
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
loader = resumable(DataLoader(records, 4, shuffle=True))
plant_faults(
    model.network,
    progress,
    lambda: {
        "data position": lambda: setattr(loader, "_batch", 1),
        "end of training": lambda: setattr(trainer, "should_stop", True),
        "metric": lambda: trainer._logger_connector._callback_metrics.update(
            val_loss=torch.tensor(0.0)
        ),
        "counter of the library": lambda: setattr(stopping, "wait_count", 7),
        "attribute of the model": lambda: setattr(model, "num_losses", 0),
    },
)
fit(trainer, model, loader, DataLoader(records[:8], 8), inexact_resume=args.inexact_resume)
trained = {"model": model, "optimizer": trainer.optimizers[0]}
