"""Each batch is mixed with records from a memory of hard examples, sampled with `random`."""

import random
from collections import deque
from dataclasses import dataclass, field

import torch
from torch import nn

from detcore_torch import DataLoader, PyTorchTrial

EPOCHS = 4
g = torch.Generator().manual_seed(11)
x = torch.randn(96, 3, generator=g)
y = (x**2).sum(1, keepdim=True)
memory_random = random.Random(99)


@dataclass
class Statistics:
    replayed: int = 0
    largest_loss: float = 0.0
    by_epoch: dict = field(default_factory=dict)


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(
            nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
        )
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), 0.01))
        self.memory = deque(maxlen=20)
        self.statistics = Statistics()

    def build_training_data_loader(self):
        return DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=12, shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=48)

    def train_batch(self, batch, epoch_idx, batch_idx):
        features, target = batch
        if len(self.memory) >= 4:
            old = memory_random.sample(list(self.memory), 4)
            features = torch.cat([features, torch.stack([item[0] for item in old])])
            target = torch.cat([target, torch.stack([item[1] for item in old])])
            self.statistics.replayed += 4
        losses = (self.model(features) - target).pow(2).squeeze(1)
        hardest = int(losses.argmax())
        self.memory.append((features[hardest].clone(), target[hardest].clone()))
        self.statistics.largest_loss = max(self.statistics.largest_loss, float(losses.max()))
        self.statistics.by_epoch[epoch_idx] = self.statistics.replayed
        self.context.backward(losses.mean())
        self.context.step_optimizer(self.optimizer)
        return {"loss": losses.mean(), "replayed": self.statistics.replayed}

    def evaluate_batch(self, batch):
        return {"val_loss": nn.functional.mse_loss(self.model(batch[0]), batch[1])}
