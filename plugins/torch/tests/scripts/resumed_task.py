"""The task of the scripts ``resumed_*.py``: 60 steps, a checkpoint at step 30."""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
from torch.nn import functional

parser = argparse.ArgumentParser()
parser.add_argument("--fault", choices=["slot", "hook", "generator"])
parser.add_argument("--inexact-resume", default="warn")
args = parser.parse_args()
fault = args.fault
is_resumed = os.environ["TEST_RUN"] != "1"
# No checkpoint contains this generator.
noise = torch.Generator().manual_seed(3)

inputs = torch.randn(120, 4, generator=torch.Generator().manual_seed(1))
records = [{"x": row, "labels": row.sum(0, keepdim=True)} for row in inputs]


class Network(torch.nn.Module):  # type: ignore[misc]  # no types here
    """A small network with dropout, whose result has a loss, as in transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
        )

    def forward(self, x: Any, labels: Any) -> dict[str, Any]:
        outputs = self.layers(x)
        return {"loss": functional.mse_loss(outputs, labels), "logits": outputs}


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


def change_weights(model: Any) -> None:
    """With the fault "hook", change a tensor of a resumed model after it was restored."""
    if fault == "hook" and is_resumed:
        with torch.no_grad():
            model.layers[2].weight.mul_(1.001)
