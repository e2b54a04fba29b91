"""Measure what the digests of a checkpoint add to a save and to a restore.

A PyTorch trial saves and restores its state, with and without digests, in a random order. "Check"
reads the restored state and compares it with the digests, as before the first batch of a resumed
trial. The CPU time is that of the process, with one thread. Compare a ratio with the null control.

    python benchmarks/restore_audit.py [--rounds 20] [--quick]
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _report import parse_options, print_table, with_quartiles
from _trial_setup import BenchmarkClock, make_setup
from torch.nn import functional

from detcore.checkpoint.restore_audit import audited, check_restored, read_audit
from detcore_torch import DataLoader, PyTorchTrial, PyTorchTrialContext
from detcore_torch.pytorch_controller import TorchController

# Number of blocks and their width: 50 MB of state in 4,000 tensors, and in 50.
MODELS = {"4,000 tensors": (150, 85), "50 tensors": (2, 720)}
QUICK = dict.fromkeys(MODELS, (1, 8))
HEADS = ["model", "work", "CPU ms", "CPU ratio [q1, q3]"]


class Blocks(PyTorchTrial):
    """Pairs of linear layers, trained with Adam."""

    def __init__(self, context: Any) -> None:
        self.context = context
        blocks, width = context.get_hparam("size")
        layers = [
            layer
            for _ in range(blocks)
            for layer in (
                torch.nn.Linear(width, 2 * width),
                torch.nn.Tanh(),
                torch.nn.Linear(2 * width, width),
                torch.nn.BatchNorm1d(width),
            )
        ]
        self.model = context.wrap_model(torch.nn.Sequential(*layers))
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(self.model.parameters()))
        self.width = width

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = functional.mse_loss(self.model(batch), batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> Any:
        raise NotImplementedError

    def build_training_data_loader(self) -> Any:
        return DataLoader(torch.rand(8, self.width), 4)

    build_validation_data_loader = build_training_data_loader


class TwoSteps(BenchmarkClock):
    """Ends the training after two steps."""

    def at_boundary(self, steps: int) -> bool:
        return False


def train_controller(folder: Path, size: tuple[int, int]) -> Any:
    """Return the controller of a trial that has trained two steps."""
    setup = make_setup(folder, 4)
    setup = type(setup)(
        config={}, hparams={**setup.hparams, "size": size}, seed=1, distributed=setup.distributed
    )
    context = PyTorchTrialContext(setup)
    controller = TorchController(Blocks(context), context)
    clock: Any = TwoSteps(2)
    controller.run(clock)
    return controller


def list_work(controller: Any, folder: Path) -> dict[str, tuple[Callable[[Path], object], ...]]:
    """Return the functions to time one after the other, by the label of their sum.

    Each function receives an empty directory.
    """
    audited(controller, controller.save)(folder)

    def check(_: Path) -> None:
        if not check_restored(controller, read_audit(folder), reaction="fail"):
            raise SystemExit("nothing was compared")

    def restore(_: Path) -> None:
        controller.restore(folder)

    return {
        "restore": (restore,),
        "null control: restore again": (restore,),
        "restore and check": (restore, check),
        "check": (check,),
        "save": (controller.save,),
        "null control: save again": (controller.save,),
        "save with digests": (audited(controller, controller.save),),
    }


def measure(label: str, size: tuple[int, int], rounds: int, folder: Path) -> list[list[str]]:
    """Return the rows of a model."""
    controller = train_controller(folder, size)
    saved = folder / "saved"
    saved.mkdir()
    work = list_work(controller, saved)
    times: dict[str, list[float]] = {name: [] for name in work}
    numbers, draw = itertools.count(), random.Random(1)  # the state has the global generator
    for number in range(rounds + 1):  # the first round allocates
        for name in draw.sample(list(work), len(work)):
            with tempfile.TemporaryDirectory(prefix=f"{next(numbers)}-", dir=folder) as empty:
                began = time.process_time()
                for function in work[name]:
                    function(Path(empty))
                if number:
                    times[name].append((time.process_time() - began) * 1e3)
    rows = []
    for name, values in times.items():
        base = times["save" if "save" in name else "restore"]
        ratios = [value / base_value for value, base_value in zip(values, base, strict=True)]
        median = f"{statistics.median(values):.1f}"
        rows.append([label, name, median, with_quartiles(ratios, 2)])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    options = parse_options(parser, rounds=1)
    torch.set_num_threads(1)
    rows = []
    for label, size in (QUICK if options.quick else MODELS).items():
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(label, size, options.rounds, Path(folder))
    print_table(HEADS, rows)


if __name__ == "__main__":
    main()
