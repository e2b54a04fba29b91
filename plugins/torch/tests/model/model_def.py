"""Trials for the tests: small and deterministic."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch.nn import functional

from detcore.errors import InvalidHP
from detcore_torch import DataLoader, LRScheduler, PyTorchCallback, PyTorchTrial


def line_data(num_records: int = 48) -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(num_records, 3, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + 0.3
    return torch.utils.data.TensorDataset(x, y)


class LineTrial(PyTorchTrial):
    """Linear regression with Adam, equal for any number of workers."""

    def __init__(self, context):
        self.context = context
        rate = float(context.get_hparam("learning_rate"))
        if rate <= 0:
            raise InvalidHP(f"learning_rate is {rate}; it must be positive")
        self.journal = context.get_data_config().get("journal")
        self.pause_s = float(context.get_hparams().get("pause_s", 0.0))
        self.model = context.wrap_model(self.build_model().double())
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters(), lr=rate))

    def build_model(self):
        return torch.nn.Linear(3, 1)

    def build_training_data_loader(self):
        return DataLoader(line_data(), self.context.get_per_slot_batch_size(), shuffle=True)

    def build_validation_data_loader(self):
        return DataLoader(line_data(21), 4)

    def build_callbacks(self):
        if not self.journal:
            return {}
        # A callback that reads checkpoints delays training, so only some runs have such a callback.
        waits = not self.context.get_experiment_config().get("checkpoint_async", True)
        return {"journal": (CheckpointJournal if waits else Journal)(self.journal)}

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        time.sleep(self.pause_s)
        loss = functional.mse_loss(self.model(x), y)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        if self.journal:
            note(self.journal, "batch_end")
        return {"loss": loss}

    def evaluate_batch(self, batch):
        x, y = batch
        return {"val_loss": functional.mse_loss(self.model(x), y)}


class FullTrial(LineTrial):
    """A trial with dropout, batch statistics, schedules, random data and momentum."""

    def __init__(self, context):
        super().__init__(context)
        context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(self.optimizer, 5),
            LRScheduler.StepMode.STEP_EVERY_OPTIMIZER_STEP,
        )

    def build_model(self):
        return torch.nn.Sequential(
            torch.nn.Linear(3, 8),
            torch.nn.BatchNorm1d(8),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.3),
            torch.nn.Linear(8, 1),
        )

    def build_training_data_loader(self):
        # The number of processes differs at each start, which must not change the result.
        num_workers = 2 * (self.context.info.run_id % 2) if self.context.info else 0
        batch_size = self.context.get_per_slot_batch_size()
        return torch.utils.data.DataLoader(
            Noisy(line_data()), batch_size, shuffle=True, num_workers=num_workers
        )

    def train_batch(self, batch, epoch_idx, batch_idx):
        x, y = batch
        metrics = super().train_batch((x + 0.01 * torch.randn_like(x), y), epoch_idx, batch_idx)
        return metrics["loss"]


class Noisy(torch.utils.data.Dataset):
    """Records that change randomly each time."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        x, y = self.data[index]
        return x + 0.1 * torch.randn(3), y


class StoppingTrial(LineTrial):
    """Ends training in its ninth batch."""

    def train_batch(self, batch, epoch_idx, batch_idx):
        if batch_idx == 8:
            self.context.set_stop_requested(True)
        return super().train_batch(batch, epoch_idx, batch_idx)


class BrokenTrial(LineTrial):
    """Raises in its sixth batch."""

    def train_batch(self, batch, epoch_idx, batch_idx):
        if batch_idx == 5:
            raise ArithmeticError("broken on purpose")
        return super().train_batch(batch, epoch_idx, batch_idx)


class DyingTrial(LineTrial):
    """The second worker kills itself in its ninth batch, once."""

    def train_batch(self, batch, epoch_idx, batch_idx):
        died = Path(self.context.get_hparam("died"))
        if batch_idx == 8 and self.context.distributed.rank == 1 and not died.exists():
            died.touch()
            os.kill(os.getpid(), 9)
        return super().train_batch(batch, epoch_idx, batch_idx)


class Journal(PyTorchCallback):
    """Records the calls of its methods."""

    def __init__(self, path):
        self.path = path

    def on_training_start(self):
        note(self.path, "train_begin")

    def on_trial_shutdown(self):
        note(self.path, "train_end")

    def on_training_epoch_start(self, epoch_idx):
        note(self.path, "epoch_begin")

    def on_training_epoch_end(self, epoch_idx):
        note(self.path, "epoch_end")

    def on_validation_start(self):
        note(self.path, "validation_begin")

    def on_validation_end(self, metrics):
        note(self.path, "validation_end")


class CheckpointJournal(Journal):
    """Records checkpoints, too."""

    def on_checkpoint_write_end(self, checkpoint_dir):
        note(self.path, "checkpoint")


def note(path, text):
    with Path(path).open("a") as file:
        file.write(f"{text}\n")
