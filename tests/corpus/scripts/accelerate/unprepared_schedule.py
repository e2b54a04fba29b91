"""A careless loop: nobody prepares the schedule."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from detcore_torch.for_accelerate import training

EPOCHS = 4
set_seed(9)
accelerator = Accelerator(cpu=True)
x = torch.randn(96, 4)
data = TensorDataset(x, x.abs().sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 15, 0.5)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, 4, shuffle=True))


def evaluate():
    with torch.no_grad():
        return {"val_loss": nn.functional.mse_loss(model(x), data.tensors[1]).item()}


with training(accelerator, loader, validate=evaluate, epochs=EPOCHS, save_every=20) as run:
    for features, target in run:
        loss = nn.functional.mse_loss(model(features), target)
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        run.report(train_loss=loss)
print("final", evaluate())
