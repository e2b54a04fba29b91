"""A classifier with dropout, batch norm and a cosine schedule per batch."""

import torch
from torch import nn
from torch.nn import functional as F

from detcore_torch import DataLoader, LRScheduler, PyTorchTrial

EPOCHS = 4
generator = torch.Generator().manual_seed(0)
x = torch.randn(112, 10, generator=generator)
y = (x[:, 0] * x[:, 1] > 0).long()


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(
            nn.Sequential(
                nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 2)
            )
        )
        self.opt = context.wrap_optimizer(
            torch.optim.AdamW(self.model.parameters(), lr=context.get_hparam("learning_rate"))
        )
        context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(self.opt, T_0=7),
            LRScheduler.StepMode.STEP_EVERY_BATCH,
        )

    def build_training_data_loader(self):
        data = torch.utils.data.TensorDataset(x[:96], y[:96])
        return DataLoader(data, batch_size=16, shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(torch.utils.data.TensorDataset(x[96:], y[96:]), batch_size=8)

    def train_batch(self, batch, epoch_idx, batch_idx):
        features, labels = batch
        loss = F.cross_entropy(self.model(features), labels, label_smoothing=0.05)
        self.context.backward(loss)
        self.context.step_optimizer(self.opt)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        features, labels = batch
        return {"val_loss": F.cross_entropy(self.model(features), labels)}
