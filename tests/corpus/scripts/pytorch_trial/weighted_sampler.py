"""Rare classes are sampled more often, and weigh more in the loss."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from detcore_torch import PyTorchTrial

EPOCHS = 4
rng = np.random.default_rng(6)
labels = rng.choice(3, size=96, p=[0.8, 0.15, 0.05])
features = (rng.normal(size=(96, 4)) + labels[:, None]).astype("float32")
counts = np.bincount(labels, minlength=3)
dataset = TensorDataset(torch.tensor(features), torch.tensor(labels))


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(nn.Linear(4, 3))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), 0.1))
        weights = torch.tensor(1.0 / np.maximum(counts, 1), dtype=torch.float32)
        self.criterion = nn.CrossEntropyLoss(weight=weights)

    def build_training_data_loader(self):
        sampler = WeightedRandomSampler((1.0 / counts)[labels], num_samples=96, replacement=True)
        return DataLoader(dataset, batch_size=12, sampler=sampler)

    def build_validation_data_loader(self):
        return DataLoader(dataset, batch_size=32)

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        loss = self.criterion(self.model(x), y)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss, "rare": (y == 2).float().mean()}

    def evaluate_batch(self, batch):
        x, y = batch
        return {"val_loss": self.criterion(self.model(x), y)}
