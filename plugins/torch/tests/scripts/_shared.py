"""Code that the scripts share: options, tasks, and a ledger of used records."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader

from detcore.data import IdKind, LedgerWriter

__all__ = [
    "CHARACTERS",
    "LENGTH",
    "TASKS",
    "Network",
    "UsedRecords",
    "make_optimizer",
    "options",
]

TEXT = topics["for"] + topics["with"] + topics["try"]
CHARACTERS = {character: number for number, character in enumerate(sorted(set(TEXT)))}
LENGTH = 16


def options() -> Any:
    """Return the command line options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", choices=TASKS, default="points")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.01, help="0 trains nothing")
    parser.add_argument("--bf16", action="store_true", help="train with mixed precision")
    parser.add_argument("--case", help="the feature of the library that a script shows")
    parser.add_argument("--alone", action="store_true", help="train and resume without detcore")
    return parser.parse_args()


def read_points(start: int, stop: int) -> Any:
    x = torch.randn(88, 4, generator=torch.Generator().manual_seed(1))
    rows = [{"ids": i, "x": row, "labels": row.sum(0, keepdim=True)} for i, row in enumerate(x)]
    return rows[start:stop]


@functools.cache
def read_digits() -> Any:
    """Read scikit-learn's digits once, because reading is slower than training."""
    return load_digits()


class Digits(torch.utils.data.Dataset):  # type: ignore[misc]  # no types here
    """Scans of handwritten digits, with noise in the training data."""

    def __init__(self, start: int, stop: int) -> None:
        digits = read_digits()
        self.images = torch.tensor(digits.data[start:stop] / 16, dtype=torch.float32)
        self.labels = torch.tensor(digits.target[start:stop])
        self.noise = 0 if start else 0.1

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        image = self.images[index]
        noisy = image + self.noise * torch.randn_like(image)
        return {"ids": index, "x": noisy, "labels": self.labels[index]}


def read_text(start: int, stop: int) -> Any:
    numbers = torch.tensor([CHARACTERS[character] for character in TEXT])
    rows = numbers[: len(numbers) // LENGTH * LENGTH].view(-1, LENGTH)[start:stop]
    return [{"ids": i, "x": row[:-1], "labels": row[1:]} for i, row in enumerate(rows)]


class Recurrent(torch.nn.Module):  # type: ignore[misc]
    """Predicts the next character for each character."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = torch.nn.Embedding(len(CHARACTERS), 16)
        self.layers = torch.nn.GRU(16, 16, batch_first=True)
        self.dropout = torch.nn.Dropout(0.1)
        self.scores = torch.nn.Linear(16, len(CHARACTERS))

    def forward(self, numbers: Any) -> Any:
        hidden, _ = self.layers(self.characters(numbers))
        return self.scores(self.dropout(hidden)).mT


class Network(torch.nn.Module):  # type: ignore[misc]
    """Layers and a loss, with result names as in transformers."""

    def __init__(self, *layers: Any, loss: Any = functional.cross_entropy) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*layers)
        self.loss = loss

    def forward(self, x: Any, labels: Any) -> Any:
        logits = self.layers(x)
        return {"loss": self.loss(logits, labels), "logits": logits}


def make_regressor() -> Network:
    layers = torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
    return Network(*layers, loss=functional.mse_loss)


def make_classifier() -> Network:
    first = torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU()
    return Network(*first, torch.nn.Dropout(0.1), torch.nn.Linear(32, 10))


@dataclasses.dataclass(frozen=True)
class Task:
    """A small training.

    Attributes:
        read: Returns the records from one number to another.
        num_training: Records to train on.
        num_records: All records; the remaining records are for validation.
        batch_size: Records in a batch of one process.
        make_network: Returns the network.
    """

    read: Callable[[int, int], Any]
    num_training: int
    num_records: int
    batch_size: int
    make_network: Callable[[], Network]

    def read_both(self) -> tuple[Any, Any]:
        """Return the training records and the validation records."""
        return self.read(0, self.num_training), self.read(self.num_training, self.num_records)

    def make_loaders(self, workers: int) -> tuple[Any, Any]:
        training, validation = self.read_both()
        loader = DataLoader(training, self.batch_size, shuffle=True, num_workers=workers)
        return loader, DataLoader(validation, 8)


TASKS = {
    "points": Task(read_points, 72, 88, 4, make_regressor),
    "digits": Task(Digits, 96, 128, 8, make_classifier),
    "text": Task(read_text, 80, 97, 8, lambda: Network(Recurrent())),
}


def make_optimizer(args: Any, model: Any) -> tuple[Any, Any]:
    """Return an optimizer and a learning rate schedule."""
    schedules = torch.optim.lr_scheduler
    if args.task == "digits":
        optimizer: Any = torch.optim.SGD(model.parameters(), args.rate, momentum=0.9)
        return optimizer, schedules.StepLR(optimizer, 7, 0.95)
    optimizer = torch.optim.AdamW(model.parameters(), args.rate)
    if args.task == "text":
        return optimizer, schedules.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))
    return optimizer, schedules.CosineAnnealingLR(optimizer, 40)


class UsedRecords:
    """Writes the ledger of one process of a script to the working directory.

    The variable ``TEST_RUN`` has the number of the run. Without it, no ledger is written. Ranks are
    torchrun's.

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
