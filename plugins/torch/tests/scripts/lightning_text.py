"""Train a small language model of characters, as the examples of Lightning do."""

import lightning
import torch
from _shared import CHARACTERS, UsedRecords, options, windows
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn import functional
from torch.utils.data import DataLoader

from detcore_torch.for_lightning import fit

args = options()


class LanguageModel(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.used = UsedRecords(80)
        self.characters = torch.nn.Embedding(len(CHARACTERS), 16)
        self.layers = torch.nn.GRU(16, 16, batch_first=True)
        self.dropout = torch.nn.Dropout(0.1)
        self.scores = torch.nn.Linear(16, len(CHARACTERS))

    def loss(self, numbers):
        hidden, _ = self.layers(self.characters(numbers[:, :-1]))
        scores = self.scores(self.dropout(hidden))
        return functional.cross_entropy(scores.flatten(0, 1), numbers[:, 1:].flatten())

    def training_step(self, batch, batch_idx):
        ids, numbers = batch
        self.used.log(self.global_step + 1, self.current_epoch, ids)
        loss = self.loss(numbers)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), args.rate)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(1.0, (step + 1) / 20)
        )
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


lightning.seed_everything(3)
model = LanguageModel()
train_loader = DataLoader(windows(0, 80), 8, shuffle=True, num_workers=args.workers)
val_loader = DataLoader(windows(80, 97), 8)
saved = ModelCheckpoint("lightning", every_n_train_steps=2, save_last=True)
trainer = lightning.Trainer(
    max_epochs=args.epochs,
    gradient_clip_val=1.0,
    check_val_every_n_epoch=1,
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
    fit(trainer, model, train_loader, val_loader, save_every=3)
trained = {
    "model": model,
    "optimizer": trainer.optimizers[0],
    "lr_scheduler": trainer.lr_scheduler_configs[0].scheduler,
}
