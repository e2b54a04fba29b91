"""A student learns from a frozen teacher with a temperature that falls over time."""

import torch
from torch import nn
from torch.nn import functional as F

from detcore_torch import DataLoader, PyTorchTrial

EPOCHS = 4
g = torch.Generator().manual_seed(2)
inputs = torch.randn(112, 6, generator=g)
targets = inputs.abs().argmax(1) % 3


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.teacher = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 3))
        for parameter in self.teacher.parameters():
            parameter.requires_grad_(False)
        self.student = context.wrap_model(
            nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))
        )
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.student.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        )
        self.temperature = 4.0

    def build_training_data_loader(self):
        return DataLoader(list(zip(inputs[:96], targets[:96])), batch_size=16, shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(list(zip(inputs[96:], targets[96:])), batch_size=16)

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        with torch.no_grad():
            soft = F.softmax(self.teacher(x) / self.temperature, dim=1)
        logits = self.student(x)
        kl = F.kl_div(F.log_softmax(logits / self.temperature, dim=1), soft, reduction="batchmean")
        loss = 0.5 * F.cross_entropy(logits, y) + 0.5 * self.temperature**2 * kl
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        self.temperature = max(1.0, self.temperature * 0.95)
        return {"loss": loss, "kl": kl}

    def evaluate_batch(self, batch):
        x, y = batch
        return {"val_loss": F.cross_entropy(self.student(x), y)}
