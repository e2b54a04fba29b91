"""Two tasks with learned uncertainty weights, gradient noise and a plateau schedule."""

import torch
from torch import nn

from detcore_torch import DataLoader, LRScheduler, PyTorchCallback, PyTorchTrial

EPOCHS = 5
g = torch.Generator().manual_seed(16)
x = torch.randn(96, 5, generator=g)
amount = x.sum(1)
kind = (x[:, 0] > 0).long()


class StepOnPlateau(PyTorchCallback):
    def __init__(self, scheduler):
        self.scheduler = scheduler

    def on_validation_end(self, metrics):
        self.scheduler.step(metrics["val_loss"])


class AddNoise(PyTorchCallback):
    """Adds noise to gradients, less with each update."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(1)
        self.scale = 0.1

    def on_before_optimizer_step(self, parameters):
        for parameter in parameters:
            if parameter.grad is not None:
                noise = torch.randn(parameter.shape, generator=self.generator)
                parameter.grad.add_(noise, alpha=self.scale)
        self.scale *= 0.9


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 16), nn.ReLU())
        self.amount, self.kind = nn.Linear(16, 1), nn.Linear(16, 2)
        self.log_variances = nn.Parameter(torch.zeros(2))

    def forward(self, inputs):
        hidden = self.trunk(inputs)
        return self.amount(hidden).squeeze(1), self.kind(hidden)


class Trial(PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(TwoHeads())
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), 0.02))
        self.plateau = context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, patience=0, threshold=0.5),
            LRScheduler.StepMode.MANUAL_STEP,
        )

    def build_callbacks(self):
        return {"plateau": StepOnPlateau(self.plateau), "noise": AddNoise()}

    def build_training_data_loader(self):
        return DataLoader(list(zip(x, amount, kind)), batch_size=16, shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(list(zip(x, amount, kind)), batch_size=32)

    def losses(self, batch):
        features, amounts, kinds = batch
        predicted, logits = self.model(features)
        first = nn.functional.mse_loss(predicted, amounts)
        second = nn.functional.cross_entropy(logits, kinds)
        variances = self.model.log_variances
        return first, second, (-variances).exp() @ torch.stack([first, second]) + variances.sum()

    def train_batch(self, batch, epoch_idx, batch_idx):
        first, second, loss = self.losses(batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss, "amount": first, "kind": second}

    def evaluate_batch(self, batch):
        first, _, loss = self.losses(batch)
        return {"val_loss": loss, "val_amount": first}
