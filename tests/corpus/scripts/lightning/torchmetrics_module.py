"""Metric objects with state, logged per epoch, and a rate that follows one of them."""

import lightning as L
import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from detcore_torch.for_lightning import fit

EPOCHS = 4


class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(5, 3)
        self.train_accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=3)
        self.val_f1 = torchmetrics.F1Score(task="multiclass", num_classes=3, average="macro")

    def training_step(self, batch, batch_idx):
        logits = self.net(batch[0])
        self.train_accuracy(logits, batch[1])
        self.log("train_accuracy", self.train_accuracy, on_step=True, on_epoch=True)
        return nn.functional.cross_entropy(logits, batch[1])

    def validation_step(self, batch, batch_idx):
        logits = self.net(batch[0])
        self.val_f1.update(logits, batch[1])
        self.log("val_f1", self.val_f1)
        self.log("val_loss", nn.functional.cross_entropy(logits, batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.2)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=0)
        config = {"scheduler": plateau, "monitor": "train_accuracy_epoch", "interval": "epoch"}
        return {"optimizer": optimizer, "lr_scheduler": config}


L.seed_everything(9)
x = torch.randn(96, 5)
data = TensorDataset(x, (x[:, :3] + torch.randn(96, 3)).argmax(1))
model = Net()
trainer = L.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    log_every_n_steps=2,
)
fit(trainer, model, DataLoader(data, 16, shuffle=True), DataLoader(data, 32), save_every=4)
print("final", {name: float(value) for name, value in trainer.callback_metrics.items()})
