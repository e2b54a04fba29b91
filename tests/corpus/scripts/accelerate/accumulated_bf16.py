"""Gradient accumulation in bfloat16, with a OneCycle schedule."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from detcore_torch.for_accelerate import training

EPOCHS = 4
set_seed(2)
accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=3)
x = torch.randn(104, 1, 8, 8)
data = TensorDataset(x, (x[:, 0, 0, 0] > 0).long())
model = nn.Sequential(
    nn.Conv2d(1, 4, 3),
    nn.BatchNorm2d(4),
    nn.ReLU(),
    nn.Flatten(),
    nn.Dropout(0.2),
    nn.Linear(144, 2),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=60)
loaders = DataLoader(data, 8, shuffle=True), DataLoader(data, 52)
model, optimizer, train_loader, val_loader, schedule = accelerator.prepare(
    model, optimizer, *loaders, schedule
)


def evaluate():
    model.eval()
    with torch.no_grad():
        losses = [nn.functional.cross_entropy(model(a).float(), b) for a, b in val_loader]
    return {"val_loss": torch.stack(losses).mean()}


with training(accelerator, train_loader, validate=evaluate, epochs=EPOCHS, save_every=3) as run:
    for features, labels in run:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(features), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_value_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        run.report(train_loss=loss)
print("final", float(evaluate()["val_loss"]))
