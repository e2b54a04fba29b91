"""An exponential moving average that is registered for checkpoints, and used for validation."""

import copy

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from detcore_torch.for_accelerate import training

EPOCHS = 4


class EMA:
    def __init__(self, model, decay):
        self.model = copy.deepcopy(model)
        self.decay = decay
        self.updates = 0

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        decay = min(self.decay, self.updates / (self.updates + 5))
        for average, value in zip(self.model.parameters(), model.parameters()):
            average.lerp_(value, 1 - decay)

    def state_dict(self):
        return {"model": self.model.state_dict(), "updates": self.updates}

    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])
        self.updates = state["updates"]


set_seed(4)
accelerator = Accelerator(cpu=True)
x = torch.rand(96, 4)
data = TensorDataset(x, (x**2).sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
ema = EMA(model, 0.95)
optimizer = torch.optim.RMSprop(model.parameters(), 5e-3, momentum=0.5)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
model, optimizer, loader, schedule = accelerator.prepare(
    model, optimizer, DataLoader(data, 16, shuffle=True), schedule
)
accelerator.register_for_checkpointing(ema)


def evaluate():
    with torch.no_grad():
        return {"val_loss": nn.functional.mse_loss(ema.model(x), data.tensors[1]).item()}


with training(accelerator, loader, validate=evaluate, epochs=EPOCHS, save_every=4) as run:
    for number, (features, target) in enumerate(run):
        loss = nn.functional.mse_loss(model(features), target)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        ema.update(model)
        if (run.step + 1) % len(loader) == 0:
            schedule.step()
        run.report(train_loss=loss)
print("final", evaluate(), ema.updates)
