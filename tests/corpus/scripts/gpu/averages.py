"""An average of the weights, a memory of hard records on the device, and index operations."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from detcore_torch import DataLoader, PyTorchTrial

EPOCHS = 3
g = torch.Generator().manual_seed(5)
x = torch.randn(96, 6, generator=g)
y = x.abs().sum(1)
data = torch.utils.data.TensorDataset(torch.arange(96), x, y)


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(
            nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 1))
        )
        self.optimizer = context.wrap_optimizer(
            torch.optim.NAdam(self.model.parameters(), 0.01, foreach=True)
        )
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.difficulty = torch.ones(96, device=context.device)
        self.histogram = torch.zeros(8, device=context.device)

    def build_training_data_loader(self):
        return DataLoader(data, batch_size=16, shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(data, batch_size=48)

    def train_batch(self, batch, epoch_idx, batch_idx):
        index, features, target = batch
        losses = (self.model(features).squeeze(1) - target).pow(2)
        loss = (losses * self.difficulty[index]).mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        self.average.update_parameters(self.model)
        new = losses.detach() / losses.detach().mean()
        self.difficulty[index] = 0.5 * self.difficulty[index] + 0.5 * new
        self.histogram.index_add_(0, index % 8, new)
        return {"loss": loss, "hardest": self.difficulty.max()}

    def evaluate_batch(self, batch):
        _, features, target = batch
        average = nn.functional.mse_loss(self.average(features).squeeze(1), target)
        return {"val_loss": average, "total": self.histogram.sum()}
