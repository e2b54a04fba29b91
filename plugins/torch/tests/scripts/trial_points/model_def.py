"""A `PyTorchTrial` on noisy points, with a gradient scaler and summed gradients."""

import torch
from torch.nn import functional

from detcore_torch import LRScheduler, PyTorchTrial


class Points(torch.utils.data.Dataset):
    def __init__(self, start, stop):
        self.x = torch.randn(88, 4, generator=torch.Generator().manual_seed(1))[start:stop]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + 0.1 * torch.randn(4), self.x[index].sum(0, keepdim=True)


class PointsTrial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        layers = (
            torch.nn.Linear(4, 8),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(8, 1),
        )
        self.model = context.wrap_model(torch.nn.Sequential(*layers))
        optimizer = torch.optim.SGD(self.model.parameters(), 0.01, momentum=0.9)
        self.optimizer = context.wrap_optimizer(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=5)
        self.scaler = context.wrap_scaler(scaler)
        context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(self.optimizer, 5),
            LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP,
        )

    def build_training_data_loader(self):
        batch_size = self.context.get_per_slot_batch_size()
        return torch.utils.data.DataLoader(Points(0, 72), batch_size, shuffle=True)

    def build_validation_data_loader(self):
        return torch.utils.data.DataLoader(Points(72, 88), 8)

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        loss = functional.mse_loss(self.model(x), y)
        self.context.backward(self.scaler.scale(loss))
        self.context.step_optimizer(self.optimizer, scaler=self.scaler)
        if self.context.is_update_batch:
            self.scaler.update()
        return {"loss": loss}

    def evaluate_batch(self, batch):
        x, y = batch
        return {"val_loss": functional.mse_loss(self.model(x), y)}
