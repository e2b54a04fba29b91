"""A weighted sampler, augmentation in the collate function, and class weights."""

import random

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, WeightedRandomSampler

from detcore_torch.for_accelerate import training

EPOCHS = 4
set_seed(6)
accelerator = Accelerator(cpu=True)
rng = np.random.default_rng(6)
labels = (rng.random(96) < 0.2).astype("int64")
rows = [((rng.normal(size=5) + label).astype("float32"), label) for label in labels]


def collate(batch):
    features = np.stack([row for row, _ in batch])
    features += np.random.normal(0, 0.1, features.shape).astype("float32")
    for row in features:
        row[random.randrange(5)] = 0.0
    return torch.from_numpy(features), torch.tensor([label for _, label in batch])


sampler = WeightedRandomSampler([4.0 if label else 1.0 for label in labels], len(labels))
model = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adamax(model.parameters(), 0.01)
model, optimizer, loader = accelerator.prepare(
    model, optimizer, DataLoader(rows, 16, sampler=sampler, collate_fn=collate, num_workers=2)
)
criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]))
clean = torch.tensor(np.stack([row for row, _ in rows])), torch.tensor(labels)


def evaluate():
    model.eval()
    with torch.no_grad():
        return {"val_loss": criterion(model(clean[0]), clean[1]).item()}


with training(accelerator, loader, validate=evaluate, epochs=EPOCHS, save_every=5) as run:
    for features, target in run:
        loss = criterion(model(features), target)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        run.report(train_loss=loss)
print("final", evaluate())
