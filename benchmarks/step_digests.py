"""What step digests add to each step of a PyTorch trial.

One trial trains, with and without digests in turns of a random order, so that other load on the
machine, and the place of its tensors in memory, are the same for all. CPU time is that of the
process; read the ratio beside that of the null control. A unit has 100 steps.

    python benchmarks/step_digests.py [--rounds 40] [--steps 400] [--quick]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _digest_rounds import HEADS, VARIANTS, DigestClock, measure_rounds
from _report import parse_options, print_table
from _trial_setup import make_setup

from detcore.data import StepDigests
from detcore.trial import TrialSetup
from detcore_torch import PyTorchTrial, PyTorchTrialContext
from detcore_torch._controller import TorchController

BATCH = 32
# Hidden units of a model that reads digits, and of one whose step is more like those of users.
WIDTHS = {"digits": 32, "1,024 hidden units": 1024}


class Classifier(PyTorchTrial):
    """Digits of random pixels."""

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


class Trial:
    """A trial that trains with one of several digests, or with none."""

    def __init__(self, folder: Path, width: int) -> None:
        self.folder = folder
        plain = make_setup(folder, BATCH)
        hparams = {**plain.hparams, "width": width}
        setup = TrialSetup(config={}, hparams=hparams, seed=1, distributed=plain.distributed)
        self.context = PyTorchTrialContext(setup)
        self.controller = TorchController(Classifier(self.context), self.context)
        self.steps = 0

    def turn(self, variant: str, every: int) -> Callable[[int], float]:
        """Return a function that trains with digests of a period, and returns the CPU seconds."""
        digests = None
        if every:
            path = self.folder / variant / "digests-1.bin"
            digests = StepDigests(path, run_id=1, start_step=0, every=every)
            digests.watch(self.controller.state_tensors)
        clock = DigestClock(digests)

        def train(steps: int) -> float:
            self.controller._digests = digests
            clock.begin(self.steps, steps)
            self.steps += steps
            began = time.process_time()
            self.controller.run(clock)  # type: ignore[arg-type]  # what a run needs of a clock
            return time.process_time() - began

        return train


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
    trial = Trial(folder, width)
    turns = {name: trial.turn(name, every) for name, every in VARIANTS.items()}
    return measure_rounds(model, turns, rounds=options.rounds, steps=options.steps)


if __name__ == "__main__":
    main()
