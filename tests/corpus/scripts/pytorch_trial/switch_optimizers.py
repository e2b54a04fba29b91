"""Adam warms up; from the third epoch on, SGD with momentum takes over."""

import torch
from torch import nn

from detcore_torch import DataLoader, LRScheduler, PyTorchTrial

EPOCHS = 5
g = torch.Generator().manual_seed(14)
x = torch.randn(80, 4, generator=g)
y = x @ torch.tensor([[1.0], [0.0], [-1.0], [2.0]]) + 0.1 * torch.randn(80, 1, generator=g)


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(nn.Sequential(nn.Linear(4, 8), nn.ELU(), nn.Linear(8, 1)))
        self.adam = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=0.01))
        self.sgd = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        )
        context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.ExponentialLR(self.sgd, 0.8),
            LRScheduler.StepMode.STEP_EVERY_EPOCH,
        )
        self.active = "adam"

    def build_training_data_loader(self):
        return DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=40)

    def train_batch(self, batch, epoch_idx, batch_idx):
        if epoch_idx == 2 and self.active == "adam":
            self.active = "sgd"
        loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        self.context.step_optimizer(getattr(self, self.active))
        return {"loss": loss, "is_sgd": float(self.active == "sgd")}

    def evaluate_batch(self, batch):
        return {"val_loss": nn.functional.mse_loss(self.model(batch[0]), batch[1])}
