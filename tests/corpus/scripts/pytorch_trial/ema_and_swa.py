"""Two averages of the weights: `torch.optim.swa_utils` from the third epoch on, and an EMA."""

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

from detcore_torch import DataLoader, PyTorchTrial

EPOCHS = 5
g = torch.Generator().manual_seed(12)
x = torch.randn(96, 4, generator=g)
y = torch.cos(x.sum(1, keepdim=True))


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(
            nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        )
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))
        self.swa_model = AveragedModel(self.model)
        self.ema_model = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.swa_scheduler = SWALR(self.optimizer, swa_lr=0.02, anneal_epochs=2)

    def build_training_data_loader(self):
        return DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=48)

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        self.ema_model.update_parameters(self.model)
        if epoch_idx >= 2 and self.context.is_epoch_end():
            self.swa_model.update_parameters(self.model)
            self.swa_scheduler.step()
        return {"loss": loss, "lr": self.optimizer.param_groups[0]["lr"]}

    def evaluate_batch(self, batch):
        features, target = batch
        return {
            "val_loss": nn.functional.mse_loss(self.model(features), target),
            "swa_loss": nn.functional.mse_loss(self.swa_model(features), target),
            "ema_loss": nn.functional.mse_loss(self.ema_model(features), target),
        }
