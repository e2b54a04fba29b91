"""A classifier with clipping, a cosine schedule per step and loader workers."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from detcore_torch.for_accelerate import hyperparameters, training

EPOCHS = 4
hparams = hyperparameters(lr=1e-2, width=16)
set_seed(1)
accelerator = Accelerator(cpu=True)
x = torch.randn(112, 6)
data = TensorDataset(x, x[:, :3].argmax(1))
model = nn.Sequential(nn.Linear(6, hparams["width"]), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=hparams["lr"])
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 28)
model, optimizer, train_loader, val_loader, schedule = accelerator.prepare(
    model,
    optimizer,
    DataLoader(data, 16, shuffle=True, num_workers=1),
    DataLoader(data, 32),
    schedule,
)


def evaluate():
    model.eval()
    losses = []
    with torch.no_grad():
        for features, labels in val_loader:
            losses.append(nn.functional.cross_entropy(model(features), labels))
    return {"val_loss": torch.stack(losses).mean().item()}


with training(
    accelerator, train_loader, validate=evaluate, epochs=EPOCHS, save_every=4, hparams=hparams
) as run:
    for features, labels in run:
        loss = nn.functional.cross_entropy(model(features), labels)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        run.report(train_loss=loss.item())
print("final", evaluate())
