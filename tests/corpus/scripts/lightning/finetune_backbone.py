"""`BackboneFinetuning` unfreezes the backbone, with a growing rate."""

import lightning as L
import torch
from lightning.pytorch.callbacks import BackboneFinetuning
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from detcore_torch.for_lightning import fit

EPOCHS = 5


class Transfer(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 3)

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.head(self.backbone(batch[0])), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        logits = self.head(self.backbone(batch[0]))
        self.log("val_loss", nn.functional.cross_entropy(logits, batch[1]), prog_bar=True)

    def configure_optimizers(self):
        trainable = [p for p in self.parameters() if p.requires_grad]
        return torch.optim.Adam(trainable, lr=1e-2)


L.seed_everything(5)
x = torch.randn(96, 8)
data = TensorDataset(x, x[:, 2:5].argmax(1))
model = Transfer()
trainer = L.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    callbacks=[BackboneFinetuning(unfreeze_backbone_at_epoch=2, lambda_func=lambda epoch: 1.5)],
    enable_progress_bar=False,
    enable_model_summary=False,
    log_every_n_steps=3,
)
fit(trainer, model, DataLoader(data, 16, shuffle=True), DataLoader(data, 32), save_every=4)
print("final", float(trainer.callback_metrics["val_loss"]))
