"""Handwritten digits: 1797 scans of 8 x 8 pixels, included in scikit-learn.

A convolutional network with dropout, a learning rate schedule and clipped gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from detcore_torch import DataLoader, LRScheduler, PyTorchTrial, PyTorchTrialContext

TRAINING_RECORDS = 1437  # four fifths


def load_split(part: str) -> TensorDataset:
    """Return images ``(record, 1, 8, 8), float32 in [0, 1]`` and labels ``(record,), int64``.

    The split is fixed, because it must not depend on the trial's seed.
    """
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    indices = order[:TRAINING_RECORDS] if part == "train" else order[TRAINING_RECORDS:]
    images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
    return TensorDataset(images[indices], torch.tensor(digits.target)[indices])


class DigitsTrial(PyTorchTrial):
    """A small convolutional network on scikit-learn's digits."""

    def __init__(self, context: PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(
            nn.Sequential(
                nn.Conv2d(1, 16, 3, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(2),
                nn.Conv2d(16, 32, 3, padding=1),
                nn.ReLU(),
                nn.Flatten(),
                nn.Dropout(context.get_hparam("dropout")),
                nn.Linear(32 * 4 * 4, 10),
            )
        )
        rate = context.get_hparam("learning_rate")
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), rate))
        context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9),
            LRScheduler.StepMode.STEP_EVERY_EPOCH,
        )

    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(load_split("train"), self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self) -> DataLoader:
        return DataLoader(load_split("validate"), self.context.get_per_slot_batch_size())

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        images, labels = batch
        loss = functional.cross_entropy(self.model(images), labels)
        self.context.backward(loss)
        self.context.step_optimizer(
            self.optimizer, lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0)
        )
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        images, labels = batch
        scores = self.model(images)
        accuracy = (scores.argmax(1) == labels).float().mean()
        return {"val_loss": functional.cross_entropy(scores, labels), "val_accuracy": accuracy}
