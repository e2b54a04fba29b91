"""Measure the time that step digests add to a step of a PyTorch trial.

One trial trains with and without digests, in turns in a random order. Other load on the machine and
the location of the tensors in memory are therefore the same for all. The CPU time is that of the
process. Compare a ratio with the null control. A unit has 100 steps.

    python benchmarks/step_digests.py [--rounds 40] [--steps 400] [--quick]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from _digest_rounds import (
    BATCH,
    HEADS,
    VARIANTS,
    WIDTHS,
    DigestClock,
    Trial,
    make_trial_setup,
    measure_rounds,
)
from _report import parse_options, print_table

from detcore_torch import PyTorchTrial, PyTorchTrialContext
from detcore_torch.pytorch_controller import TorchController


class Classifier(PyTorchTrial):
    """Random images in the shape of digits."""

    def __init__(self, context: Any) -> None:
        self.context = context
        width = context.get_hparam("width")
        model = torch.nn.Sequential(
            torch.nn.Linear(64, width),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(width, 10),
        )
        self.model = context.wrap_model(model)
        self.optimizer = context.wrap_optimizer(torch.optim.Adam(model.parameters()))
        self.data = torch.utils.data.TensorDataset(torch.rand(1797, 64), torch.randint(10, (1797,)))

    def loss(self, batch: Any) -> Any:
        images, labels = batch
        return torch.nn.functional.cross_entropy(self.model(images), labels)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> Any:
        loss = self.loss(batch)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> Any:
        return {"val_loss": self.loss(batch)}

    def build_training_data_loader(self) -> Any:
        return torch.utils.data.DataLoader(self.data, BATCH, shuffle=True)

    def build_validation_data_loader(self) -> Any:
        return torch.utils.data.DataLoader(self.data, BATCH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=400)
    options = parse_options(parser, rounds=2, steps=100)
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory(prefix="step-digests-") as name:
        for model, width in WIDTHS.items():
            rows += _measure(Path(name) / model, model, width, options)
    print_table(HEADS, rows)


def _measure(folder: Path, model: str, width: int, options: argparse.Namespace) -> list[list[str]]:
    context = PyTorchTrialContext(make_trial_setup(folder, width))
    controller = TorchController(Classifier(context), context)

    def use(clock: DigestClock) -> None:
        controller._digests = clock.digests

    trial = Trial(controller, use)
    turns = {name: trial.digests_turn(folder / name, every) for name, every in VARIANTS.items()}
    return measure_rounds(model, turns, rounds=options.rounds, steps=options.steps)


if __name__ == "__main__":
    main()
