"""Hard example mining with a memory in local variables of the script."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from detcore_torch.for_accelerate import training

EPOCHS = 4
set_seed(8)
accelerator = Accelerator(cpu=True)
x = torch.randn(96, 4)
data = TensorDataset(torch.arange(96), x, x.sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), 0.01)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, 4, shuffle=True))
weights = torch.ones(96)
baseline = 1.0


def evaluate():
    with torch.no_grad():
        return {"val_loss": nn.functional.mse_loss(model(x), data.tensors[2]).item()}


with training(accelerator, loader, validate=evaluate, epochs=EPOCHS, save_every=25) as run:
    for index, features, target in run:
        losses = (model(features) - target).pow(2).squeeze(1)
        loss = (losses * weights[index]).mean() / baseline
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        weights[index] = 0.5 * weights[index] + 0.5 * losses.detach() / losses.detach().mean()
        baseline = 0.9 * baseline + 0.1 * loss.item()
        run.report(train_loss=loss)
print("final", evaluate(), baseline)
