"""Early stopping with a copy of the best weights, which replaces the final ones."""

import copy

import torch
from torch import nn

from detcore_torch import DataLoader, PyTorchCallback, PyTorchTrial

EPOCHS = 8
g = torch.Generator().manual_seed(9)
x = torch.randn(60, 12, generator=g)
y = x[:, :1] + torch.randn(60, 1, generator=g)


class EarlyStopping(PyTorchCallback):
    def __init__(self, trial, patience=2):
        self.trial = trial
        self.patience = patience
        self.best = float("inf")
        self.bad_epochs = 0
        self.best_weights = None

    def on_validation_end(self, metrics):
        if metrics["val_loss"] < self.best - 1e-3:
            self.best = metrics["val_loss"]
            self.bad_epochs = 0
            self.best_weights = copy.deepcopy(self.trial.model.state_dict())
        else:
            self.bad_epochs += 1
        if self.bad_epochs >= self.patience:
            self.trial.model.load_state_dict(self.best_weights)
            self.trial.context.set_stop_requested(True)


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(
            nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 1))
        )
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), 0.02))

    def build_callbacks(self):
        return {"stop": EarlyStopping(self)}

    def build_training_data_loader(self):
        data = torch.utils.data.TensorDataset(x[:40], y[:40])
        return DataLoader(data, batch_size=8, shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(torch.utils.data.TensorDataset(x[40:], y[40:]), batch_size=20)

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        return {"val_loss": nn.functional.mse_loss(self.model(batch[0]), batch[1])}
