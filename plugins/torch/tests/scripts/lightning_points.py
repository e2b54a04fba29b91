"""Train a small network on points with summed gradients, as the examples of Lightning do."""

import lightning
import torch
from _shared import UsedRecords, options
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn import functional
from torch.utils.data import DataLoader, Subset, TensorDataset

from detcore_torch.for_lightning import fit, hyperparameters

args = options()


class Network(lightning.LightningModule):
    def __init__(self, width, learning_rate):
        super().__init__()
        self.save_hyperparameters()
        self.used = UsedRecords(72)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, width),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(width, 1),
        )

    def training_step(self, batch, batch_idx):
        ids, x, y = batch
        self.used.log(self.global_step + 1, self.current_epoch, ids)
        loss = functional.mse_loss(self.layers(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        _, x, y = batch
        self.log("val_loss", functional.mse_loss(self.layers(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), self.hparams.learning_rate)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.02, total_steps=self.trainer.estimated_stepping_batches
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


hparams = hyperparameters(width=8, learning_rate=0.01)
lightning.seed_everything(1)
model = Network(**hparams)
x = torch.randn(88, 4)
data = TensorDataset(torch.arange(88), x, x.sum(1, keepdim=True))
train_loader = DataLoader(Subset(data, range(72)), 4, shuffle=True, num_workers=args.workers)
val_loader = DataLoader(Subset(data, range(72, 88)), 8)
saved = ModelCheckpoint("lightning", every_n_train_steps=2, save_last=True)
trainer = lightning.Trainer(
    max_epochs=args.epochs,
    accumulate_grad_batches=2,
    precision="bf16-mixed" if args.bf16 else "32-true",
    val_check_interval=12,
    check_val_every_n_epoch=None,
    log_every_n_steps=5,
    accelerator="cpu",
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
    fit(trainer, model, train_loader, val_loader, hparams=hparams, save_every=2)
trained = {
    "model": model,
    "optimizer": trainer.optimizers[0],
    "lr_scheduler": trainer.lr_scheduler_configs[0].scheduler,
}
