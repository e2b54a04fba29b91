"""Shared by the scripts: their options, small data, and a ledger of the records they used."""

from __future__ import annotations

import argparse
import functools
import os
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from sklearn.datasets import load_digits

from detcore.data import IdKind, LedgerWriter

__all__ = [
    "CHARACTERS",
    "LENGTH",
    "Digits",
    "UsedRecords",
    "options",
    "train_with_accelerate_alone",
    "windows",
]

TEXT = topics["for"] + topics["with"] + topics["try"]
CHARACTERS = {character: number for number, character in enumerate(sorted(set(TEXT)))}
LENGTH = 16


def options() -> Any:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument(
        "--rate", type=float, default=0.01, help="learning rate of the text; 0 trains nothing"
    )
    parser.add_argument("--bf16", action="store_true", help="train with mixed precision")
    parser.add_argument("--case", help="the feature of the library that a script shows")
    parser.add_argument("--alone", action="store_true", help="train and resume without detcore")
    return parser.parse_args()


@functools.cache
def read_digits() -> Any:
    """Read scikit-learn's digits once: reading them takes longer than training on them."""
    return load_digits()


class Digits(torch.utils.data.Dataset):  # type: ignore[misc]  # no types here
    """Scans of handwritten digits with noise: number, image ``(64,), float32``, and label."""

    def __init__(self, start: int, stop: int, noise: float = 0.1) -> None:
        digits = read_digits()
        self.images = torch.tensor(digits.data[start:stop] / 16, dtype=torch.float32)
        self.labels = torch.tensor(digits.target[start:stop])
        self.noise = noise

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        image = self.images[index]
        return index, image + self.noise * torch.randn_like(image), self.labels[index]


def windows(start: int, stop: int) -> Any:
    """Return windows of a text: number, and characters ``(LENGTH,), int64``."""
    numbers = torch.tensor([CHARACTERS[character] for character in TEXT])
    rows = numbers[: len(numbers) // LENGTH * LENGTH].view(-1, LENGTH)[start:stop]
    return torch.utils.data.TensorDataset(torch.arange(len(rows)), rows)


class UsedRecords:
    """Writes the ledger of one process of a script to the working folder.

    The test gives the number of the run in the variable ``TEST_RUN``; without it, nothing is
    written. Ranks are torchrun's.

    Args:
        num_records: Records in the training data, whose ids are their indices.
    """

    def __init__(self, num_records: int) -> None:
        self._num_records = num_records
        self._ledger: LedgerWriter | None = None

    def log(self, step: int, epoch: int, ids: Any) -> None:
        """Log a batch.

        Args:
            step: The step that the batch belongs to, from 1.
            epoch: Pass over the data, from 0.
            ids: Ids of its records, ``(batch,)``.
        """
        run, rank = os.environ.get("TEST_RUN"), int(os.environ.get("RANK", "0"))
        if run is None:
            return
        if self._ledger is None:
            self._ledger = LedgerWriter(
                Path(f"ledger-{run}-{rank}.bin"),
                run_id=int(run),
                start_step=step - 1,
                rank=rank,
                world_size=int(os.environ.get("WORLD_SIZE", "1")),
            )
            self._ledger.describe(IdKind.RECORD_INDEX, num_records=self._num_records)
        self._ledger.log(step, epoch, ids)
        self._ledger.flush()  # the process may be killed at any time


def train_with_accelerate_alone(accelerator: Any, loader: Any, epochs: int, train: Any) -> None:
    """Train, save every second step and resume as the documentation of Accelerate describes.

    Args:
        accelerator: The accelerator.
        loader: The training data, prepared.
        epochs: Passes over the data.
        train: Called with step, epoch and batch.
    """
    accumulated = accelerator.gradient_accumulation_steps
    done = max((int(path.name) for path in Path("accelerate").glob("[0-9]*")), default=0)
    if done:
        accelerator.load_state(f"accelerate/{done}")
    start, skipped = divmod(done, -(-len(loader) // accumulated))
    for epoch in range(start, epochs):
        loader.set_epoch(epoch)
        batches = loader
        if epoch == start:
            batches = accelerator.skip_first_batches(loader, accumulated * skipped)
        for batch in batches:
            train(done, epoch, batch)
            if accelerator.sync_gradients:
                done += 1
                if done % 2 == 0:
                    accelerator.save_state(f"accelerate/{done}")
