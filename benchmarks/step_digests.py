"""What step digests add to each step of a PyTorch trial.

Trials of the same model, with and without digests, are in one process and take turns in a random
order, so that other load on the machine falls on all alike. CPU time is that of the process; read
the ratio beside that of the null control. A unit has 100 steps.

    python benchmarks/step_digests.py [--rounds 40] [--steps 400] [--quick]
"""

from __future__ import annotations

import argparse
import tempfile
import time
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


class Variant:
    """A trial with its controller and its clock."""

    def __init__(self, folder: Path, width: int, *, every: int) -> None:
        digests = None
        if every:
            path = folder / "digests-1.bin"
            digests = StepDigests(path, run_id=1, start_step=0, every=every)
        plain = make_setup(folder, BATCH)
        setup = TrialSetup(
            config={},
            hparams={**plain.hparams, "width": width},
            seed=1,
            distributed=plain.distributed,
            digests=digests,
        )
        context = PyTorchTrialContext(setup)
        self.controller = TorchController(Classifier(context), context)
        self.clock = DigestClock(digests)
        if digests is not None:
            digests.watch(self.controller.state_tensors)

    def cpu_s(self, steps: int) -> float:
        """Train, and return the CPU seconds."""
        self.clock.stop += steps
        began = time.process_time()
        self.controller.run(self.clock)  # type: ignore[arg-type]  # what a run needs of a clock
        return time.process_time() - began


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
    turns = {
        name: Variant(folder / name, width, every=every).cpu_s for name, every in VARIANTS.items()
    }
    return measure_rounds(model, turns, rounds=options.rounds, steps=options.steps)


if __name__ == "__main__":
    main()
