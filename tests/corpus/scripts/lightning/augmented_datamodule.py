"""A data module with NumPy and `random` augmentation, and a rate drawn at random each epoch."""

import random

import lightning as L
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from detcore_torch.for_lightning import fit

EPOCHS = 4


class Images(Dataset):
    def __init__(self, train):
        rng = np.random.default_rng(11)
        images = rng.random((112, 1, 8, 8), dtype="float32")
        self.images = images[:96] if train else images[96:]
        self.labels = (self.images[:, 0, :4].mean((1, 2)) > 0.5).astype("int64")
        self.train = train

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = self.images[i].copy()
        if self.train:
            if random.random() < 0.5:
                image = image[:, :, ::-1].copy()
            image += np.random.normal(0, 0.05, image.shape).astype("float32")
            top = torch.randint(0, 6, ()).item()
            image[:, top : top + 2] = 0
        return image, self.labels[i]


class Data(L.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(Images(True), batch_size=16, shuffle=True, num_workers=2)

    def val_dataloader(self):
        return DataLoader(Images(False), batch_size=16)


class CNN(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))

    def on_train_epoch_start(self):
        rate = 10 ** random.uniform(-3, -1.5)
        self.optimizers().param_groups[0]["lr"] = rate

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


L.seed_everything(11, workers=True)
model = CNN()
trainer = L.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    log_every_n_steps=3,
)
fit(trainer, model, datamodule=Data(), save_every=4)
print("final", float(trainer.callback_metrics["val_loss"]))
