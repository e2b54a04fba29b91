"""Gradients of three batches are summed and clipped."""

# config: optimizations.aggregation_frequency=3

import torch
from torch import nn

from detcore_torch import DataLoader, LRScheduler, PyTorchTrial

EPOCHS = 4
g = torch.Generator().manual_seed(4)
x = torch.randn(120, 3, generator=g)
y = torch.sin(x.sum(1, keepdim=True))


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.net = context.wrap_model(nn.Sequential(nn.Linear(3, 24), nn.GELU(), nn.Linear(24, 1)))
        self.opt = context.wrap_optimizer(torch.optim.NAdam(self.net.parameters(), lr=0.02))
        self.schedule = context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.MultiStepLR(self.opt, [3, 6], gamma=0.3),
            LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP,
        )
        self.norms = []

    def build_training_data_loader(self):
        data = torch.utils.data.TensorDataset(x[:100], y[:100])
        return DataLoader(data, batch_size=16, shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(torch.utils.data.TensorDataset(x[100:], y[100:]), batch_size=10)

    def train_batch(self, batch, epoch_idx, batch_idx):
        features, target = batch
        loss = nn.functional.huber_loss(self.net(features), target)
        self.context.backward(loss)

        def clip(parameters):
            norm = torch.nn.utils.clip_grad_norm_(parameters, 0.5)
            self.norms.append(float(norm))

        self.context.step_optimizer(self.opt, clip_grads=clip)
        return {"loss": loss, "mean_norm": sum(self.norms) / max(1, len(self.norms))}

    def evaluate_batch(self, batch):
        features, target = batch
        return {"val_loss": nn.functional.mse_loss(self.net(features), target)}
