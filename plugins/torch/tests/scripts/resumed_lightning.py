"""Train with Lightning; see `resumed_task`."""

import lightning
from resumed_task import Network, args, change_weights, make_optimizer, records
from torch.utils.data import DataLoader

from detcore_torch.for_lightning import fit


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = Network()

    def on_train_batch_start(self, batch, batch_idx):
        if self.global_step == 30:
            change_weights(self.network)

    def training_step(self, batch, batch_idx):
        loss = self.network(**batch)["loss"]
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.network(**batch)["loss"])

    def configure_optimizers(self):
        return make_optimizer(self.network)


lightning.seed_everything(1)
model = Module()
trainer = lightning.Trainer(
    max_steps=60,
    log_every_n_steps=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
loaders = DataLoader(records, 4, shuffle=True), DataLoader(records[:8], 8)
fit(trainer, model, *loaders, inexact_resume=args.inexact_resume)
trained = {"model": model, "optimizer": trainer.optimizers[0]}
