"""Training starts with easy records; noise is drawn by a NumPy generator of the trial."""

import numpy as np
import torch
from torch import nn

from detcore_torch import DataLoader, PyTorchCallback, PyTorchTrial

EPOCHS = 5
data_rng = np.random.default_rng(10)
x = data_rng.normal(size=(96, 4)).astype("float32")
margin = np.abs(x.sum(axis=1))
y = (x.sum(axis=1) > 0).astype("int64")


class Curriculum(PyTorchCallback):
    """Lets harder records in after each epoch."""

    def __init__(self, trial):
        self.trial = trial

    def on_training_epoch_end(self, epoch_idx):
        self.trial.threshold = max(0.0, self.trial.threshold - 0.4)
        self.trial.history.append((epoch_idx, self.trial.used))
        self.trial.used = 0


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(nn.Linear(4, 2))
        self.optimizer = context.wrap_optimizer(
            torch.optim.Adagrad(self.model.parameters(), lr=0.1)
        )
        self.rng = np.random.default_rng(123)
        self.threshold = 1.5
        self.used = 0
        self.history = []

    def build_callbacks(self):
        return {"curriculum": Curriculum(self)}

    def build_training_data_loader(self):
        return DataLoader(list(zip(x, y, margin)), batch_size=16, shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(list(zip(x, y, margin)), batch_size=48)

    def train_batch(self, batch, epoch_idx, batch_idx):
        features, labels, difficulty = batch
        noise = torch.as_tensor(self.rng.normal(0, 0.1, size=features.shape), dtype=torch.float32)
        easy = difficulty >= self.threshold
        losses = nn.functional.cross_entropy(self.model(features + noise), labels, reduction="none")
        loss = (losses * easy).sum() / easy.sum().clamp(min=1)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        self.used += int(easy.sum())
        return {"loss": loss, "threshold": self.threshold, "used": self.used}

    def evaluate_batch(self, batch):
        features, labels, _ = batch
        return {"val_loss": nn.functional.cross_entropy(self.model(features), labels)}
