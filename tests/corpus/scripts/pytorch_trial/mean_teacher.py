"""Semi-supervised training: a mean teacher labels noisy copies of unlabelled points."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from detcore_torch import DataLoader, PyTorchTrial

EPOCHS = 4
g = torch.Generator().manual_seed(3)
points = torch.randn(128, 5, generator=g)
labels = (points.sum(1) > 0).long()
labels[16:96] = -1  # unlabelled


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        student = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 2))
        self.teacher = copy.deepcopy(student)
        self.student = context.wrap_model(student)
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.student.parameters(), 0.01))
        self.step = 0

    def build_training_data_loader(self):
        return DataLoader(list(zip(points[:96], labels[:96])), batch_size=16, shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(list(zip(points[96:], labels[96:])), batch_size=16)

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        student = self.student(x + 0.1 * torch.randn_like(x))
        with torch.no_grad():
            teacher = self.teacher(x + 0.1 * torch.randn_like(x))
        supervised = F.cross_entropy(student, y, ignore_index=-1, reduction="sum") / len(x)
        consistency = F.mse_loss(student.softmax(1), teacher.softmax(1))
        ramp = min(1.0, self.step / 10)
        loss = supervised + ramp * consistency
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        self.step += 1
        decay = min(1 - 1 / (self.step + 1), 0.97)
        with torch.no_grad():
            for old, new in zip(self.teacher.parameters(), self.student.parameters()):
                old.mul_(decay).add_(new, alpha=1 - decay)
        return {"loss": loss, "consistency": consistency}

    def evaluate_batch(self, batch):
        x, y = batch
        return {"val_loss": F.cross_entropy(self.teacher(x), y)}
