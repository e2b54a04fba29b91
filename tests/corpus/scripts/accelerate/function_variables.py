"""A loop in a function, with an average, a moving baseline and a queue that nobody registers."""

import collections

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from detcore_torch.for_accelerate import training


class RunningScale:
    def __init__(self, model):
        self.model = model
        self.mean = 1.0
        self.history = []

    def update(self, value):
        self.mean = 0.95 * self.mean + 0.05 * value
        self.history.append(value)


def main():
    set_seed(12)
    accelerator = Accelerator(cpu=True)
    x = torch.randn(96, 4)
    target = (x[:, :1] * x[:, 1:2]).sin()
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    data = DataLoader(TensorDataset(x, target), 4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, data)
    scale = RunningScale(model)
    noise = torch.Generator().manual_seed(3)
    recent = collections.deque(maxlen=5)
    num_large = 0
    best = float("inf")

    def evaluate():
        nonlocal best
        with torch.no_grad():
            loss = nn.functional.mse_loss(average(x), target).item()
        best = min(best, loss)
        return {"val_loss": loss, "best": best}

    with training(accelerator, loader, validate=evaluate, epochs=4, save_every=25) as run:
        for features, labels in run:
            jittered = features + 0.05 * torch.randn(features.shape, generator=noise)
            losses = (model(jittered) - labels).pow(2)
            is_large = len(recent) == 5 and losses.mean().item() > sum(recent) / 5
            num_large += is_large
            loss = losses.mean() / scale.mean / (1 + 0.01 * num_large)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(model)
            scale.update(losses.mean().item())
            recent.append(losses.mean().item())
            run.report(train_loss=loss)
    print("final", evaluate(), num_large, scale.mean, sum(scale.history), best)


main()
