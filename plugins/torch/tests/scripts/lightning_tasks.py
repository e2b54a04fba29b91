"""Train like Lightning's examples: points with summed gradients, digits with a scaler."""

import lightning
import torch
from _shared import TASKS, UsedRecords, make_optimizer, options
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision

from detcore_torch.for_lightning import fit, hyperparameters

args = options()
task = TASKS[args.task]


class Module(lightning.LightningModule):
    def __init__(self, rate):
        super().__init__()
        self.save_hyperparameters()
        self.used = UsedRecords(task.num_training)
        self.network = task.make_network()

    def training_step(self, batch, batch_idx):
        self.used.log(self.global_step + 1, self.current_epoch, batch.pop("ids"))
        loss = self.network(**batch)["loss"]
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.network(batch["x"], batch["labels"])["loss"])

    def configure_optimizers(self):
        optimizer, scheduler = make_optimizer(args, self)
        if args.task == "points":
            scheduler = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, 0.02, total_steps=self.trainer.estimated_stepping_batches
            )
        interval = "epoch" if args.task == "digits" else "step"
        return [optimizer], [{"scheduler": scheduler, "interval": interval}]


hparams = hyperparameters(rate=args.rate)
lightning.seed_everything(1)
model = Module(**hparams)
loaders = task.make_loaders(args.workers)
checkpoint = ModelCheckpoint("lightning", every_n_train_steps=2, save_last=True)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=5)
settings = {
    "points": {
        "accumulate_grad_batches": 2,
        "precision": "bf16-mixed" if args.bf16 else "32-true",
        "val_check_interval": 12,
        "check_val_every_n_epoch": None,
    },
    "digits": {
        "gradient_clip_val": 1.0,
        "plugins": [MixedPrecision("16-mixed", "cpu", scaler)],
        "val_check_interval": 6 // args.ranks,
    },
    "text": {"gradient_clip_val": 1.0},
}
trainer = lightning.Trainer(
    **settings[args.task],
    max_epochs=args.epochs,
    log_every_n_steps=5,
    accelerator="cpu",
    devices=args.ranks,
    logger=False,
    callbacks=[checkpoint] if args.alone else [],
    enable_checkpointing=args.alone,
    enable_progress_bar=False,
    enable_model_summary=False,
)
if args.alone:
    trainer.fit(model, *loaders, ckpt_path="last")
else:
    fit(trainer, model, *loaders, hparams=hparams, save_every=2)
trained = {
    "model": model,
    "optimizer": trainer.optimizers[0],
    "lr_scheduler": trainer.lr_scheduler_configs[0].scheduler,
    "scaler": scaler,
}
