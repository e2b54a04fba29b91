"""Layers are unfrozen by a plain counter in the script, and rates change by hand."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from detcore_torch.for_accelerate import training

EPOCHS = 5
set_seed(7)
accelerator = Accelerator(cpu=True)
x = torch.randn(96, 6)
data = TensorDataset(x, x.abs().sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
model[0].requires_grad_(False)
model[2].requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), 0.01)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, 16, shuffle=True))


def evaluate():
    with torch.no_grad():
        return {"val_loss": nn.functional.mse_loss(model(x), data.tensors[1]).item()}


with training(accelerator, loader, validate=evaluate, epochs=EPOCHS, save_every=4) as run:
    for features, target in run:
        if run.epoch == 1:
            model[2].requires_grad_(True)
        if run.epoch == 3:
            model[0].requires_grad_(True)
            optimizer.param_groups[0]["lr"] = 0.003
        loss = nn.functional.l1_loss(model(features), target)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        run.report(train_loss=loss)
print("final", evaluate())
