"""The task of the scripts ``resumed_*.py``: 60 steps in epochs of 40, a checkpoint at step 30."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from _script_faults import plant_each
from torch.nn import functional

parser = argparse.ArgumentParser()
parser.add_argument("--fault", choices=["slot", "hook", "skip", "each"])
parser.add_argument("--inexact-resume", default="warn")
args = parser.parse_args()
fault = args.fault
is_resumed = os.environ["TEST_RUN"] != "1"
# The loop of Accelerate draws from it.
noise = torch.Generator().manual_seed(3)

inputs = torch.randn(160, 4, generator=torch.Generator().manual_seed(1))
records = [{"x": row, "labels": row.sum(0, keepdim=True)} for row in inputs]


class Network(torch.nn.Module):  # type: ignore[misc]  # no types here
    """A small network with dropout and buffers, whose result has a loss, as in transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
        self.dropout = torch.nn.Dropout(0.2)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, x: Any, labels: Any) -> dict[str, Any]:
        if self.training:
            self.mean.lerp_(x.mean(0), 0.1)
            self.seen += 1
            if self.seen == 10:
                self.dropout.p = 0.1
                self.first.bias.requires_grad = False
        outputs = self.last(self.dropout(self.first(x))).float()
        return {"loss": functional.mse_loss(outputs, labels), "logits": outputs}


class Progress:
    """A count, an average of the weights and a generator, for a callback."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.average: dict[str, Any] = {}
        self.generator = np.random.default_rng(4)

    def update(self, network: Any) -> None:
        self.count += 1
        share = 0.1 + 0.01 * self.generator.random()
        for name, parameter in network.named_parameters():
            weights = parameter.detach()
            average = self.average.setdefault(name, weights.clone())
            average.lerp_(weights, share)


def make_optimizer(model: Any) -> Any:
    """Return an optimizer; with the fault "slot", it forgets a moment when it is restored."""
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    load = optimizer.load_state_dict

    def forget_moment(state: Any) -> None:
        load(state)
        for moments in list(optimizer.state.values())[:1]:
            moments["exp_avg"].zero_()

    if fault == "slot":
        optimizer.load_state_dict = forget_moment
    return optimizer


def make_scheduler(optimizer: Any) -> Any:
    """Return a scheduler that steps after each batch."""
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)


def make_scaler() -> Any:
    """Return a gradient scaler whose scale grows."""
    return torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=8)


def plant_faults(
    network: Any, progress: Any, more: Callable[[], Mapping[str, Callable[[], Any]]]
) -> None:
    """With the fault "each", check each fault of `_script_faults` and more when resuming."""
    if fault == "each":
        plant_each(network, progress, more, is_resumed=is_resumed)


def change_weights(model: Any) -> None:
    """With the fault "hook", change a tensor of a resumed model after it was restored."""
    if fault == "hook" and is_resumed:
        with torch.no_grad():
            model.last.weight.mul_(1.001)
