"""The loop ends when validation does not improve; the best weights are kept in memory."""

import copy

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from detcore_torch.for_accelerate import training

EPOCHS = 8


class Best:
    def __init__(self):
        self.loss, self.bad, self.weights = float("inf"), 0, {}

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)


set_seed(5)
accelerator = Accelerator(cpu=True)
x = torch.randn(60, 12)
y = x[:, :1] + torch.randn(60, 1)
train_data, val_data = TensorDataset(x[:40], y[:40]), TensorDataset(x[40:], y[40:])
model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), 0.02)
model, optimizer, loader = accelerator.prepare(
    model, optimizer, DataLoader(train_data, 8, shuffle=True)
)
best = Best()
accelerator.register_for_checkpointing(best)


def evaluate():
    model.eval()
    with torch.no_grad():
        loss = nn.functional.mse_loss(model(x[40:]), y[40:]).item()
    if loss < best.loss:
        best.loss, best.bad = loss, 0
        best.weights = copy.deepcopy(model.state_dict())
    else:
        best.bad += 1
    return {"val_loss": loss}


with training(accelerator, loader, validate=evaluate, epochs=EPOCHS, save_every=3) as run:
    for features, target in run:
        if best.bad >= 2:
            break
        loss = nn.functional.mse_loss(model(features), target)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        run.report(train_loss=loss)
print("final", best.loss, best.bad)
