"""Train a small network on scikit-learn's handwritten digits with Lightning's Trainer.

The detcore lines are the import, ``hyperparameters`` and ``fit``.
"""

import argparse

import lightning
import torch
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset, random_split

from detcore_torch.for_lightning import fit, hyperparameters


class Digits(lightning.LightningDataModule):
    """Scans of 8 x 8 pixels, a fifth of them for validation."""

    def __init__(self, batch_size, num_workers):
        super().__init__()
        self.batch_size = batch_size
        self.num_workers = num_workers

    def setup(self, stage):
        digits = load_digits()
        images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
        data = TensorDataset(images, torch.tensor(digits.target))
        self.train, self.val_data = random_split(data, [0.8, 0.2])

    def train_dataloader(self):
        return DataLoader(self.train, self.batch_size, shuffle=True, num_workers=self.num_workers)

    def val_dataloader(self):
        return DataLoader(self.val_data, 128)


class Classifier(lightning.LightningModule):
    """A convolutional network with two layers."""

    def __init__(self, width, dropout, learning_rate):
        super().__init__()
        self.learning_rate = learning_rate
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(1, width, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(width, width, 3, padding=1),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
            torch.nn.Dropout(dropout),
            torch.nn.Linear(16 * width, 10),
        )

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = functional.cross_entropy(self.layers(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        logits = self.layers(images)
        self.log("val_loss", functional.cross_entropy(logits, labels))
        self.log("val_accuracy", (logits.argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), self.learning_rate)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.learning_rate, total_steps=self.trainer.estimated_stepping_batches
        )
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--num-workers", type=int, default=0)
args = parser.parse_args()
hparams = hyperparameters(width=16, dropout=0.3, learning_rate=1e-2, batch_size=32)
lightning.seed_everything(1)
digits = Digits(hparams["batch_size"], args.num_workers)
model = Classifier(hparams["width"], hparams["dropout"], hparams["learning_rate"])
trainer = lightning.Trainer(
    max_epochs=args.epochs,
    log_every_n_steps=15,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
fit(trainer, model, datamodule=digits, hparams=hparams)
