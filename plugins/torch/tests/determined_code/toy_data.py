"""Synthetic data of the examples; a process with TEST_KILL_AT kills itself at that update.

With TEST_STOP_AT, the process gets SIGTERM at that update.
"""

import itertools
import os
import signal

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook


def points(num_records=96):
    """Points of three classes: float32 features of shape [8], and labels."""
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(num_records, 8, generator=generator)
    labels = (features[:, :3] + 0.3 * torch.randn(num_records, 3, generator=generator)).argmax(1)
    return torch.utils.data.TensorDataset(features, labels)


def signal_at_update(number, kind):
    """Send this process a signal before an optimizer's update."""
    counter = itertools.count(1)

    def hook(*_):
        if next(counter) == number:
            os.kill(os.getpid(), kind)

    register_optimizer_step_pre_hook(hook)


if "TEST_KILL_AT" in os.environ:
    signal_at_update(int(os.environ["TEST_KILL_AT"]), signal.SIGKILL)
if "TEST_STOP_AT" in os.environ:
    signal_at_update(int(os.environ["TEST_STOP_AT"]), signal.SIGTERM)
