"""Classify noisy scans of digits with a gradient scaler, as the examples of Lightning do."""

import lightning
import torch
from _shared import Digits, UsedRecords, options
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from torch.nn import functional
from torch.utils.data import DataLoader

from detcore_torch.for_lightning import fit

args = options()


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.used = UsedRecords(96)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(64, 32),
            torch.nn.BatchNorm1d(32),
            torch.nn.ReLU(),
            torch.nn.Linear(32, 10),
        )

    def training_step(self, batch, batch_idx):
        ids, images, labels = batch
        self.used.log(self.global_step + 1, self.current_epoch, ids)
        loss = functional.cross_entropy(self.layers(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        _, images, labels = batch
        self.log("val_loss", functional.cross_entropy(self.layers(images), labels))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.05, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)]


lightning.seed_everything(2)
model = Classifier()
train_loader = DataLoader(Digits(0, 96), 8, shuffle=True, num_workers=args.workers)
val_loader = DataLoader(Digits(96, 128, noise=0), 16)
saved = ModelCheckpoint("lightning", every_n_train_steps=2, save_last=True)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=5)
trainer = lightning.Trainer(
    max_epochs=args.epochs,
    gradient_clip_val=1.0,
    val_check_interval=6 // args.ranks,
    log_every_n_steps=5,
    accelerator="cpu",
    plugins=[MixedPrecision("16-mixed", "cpu", scaler)],
    devices=args.ranks,
    strategy="ddp" if args.ranks > 1 else "auto",
    logger=False,
    callbacks=[saved] if args.alone else [],
    enable_checkpointing=args.alone,
    enable_progress_bar=False,
    enable_model_summary=False,
)
if args.alone:
    trainer.fit(model, train_loader, val_loader, ckpt_path="last")
else:
    fit(trainer, model, train_loader, val_loader, save_every=2)
trained = {
    "model": model,
    "optimizer": trainer.optimizers[0],
    "lr_scheduler": trainer.lr_scheduler_configs[0].scheduler,
    "scaler": scaler,
}
